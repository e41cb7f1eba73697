// Contexts of the fake driver, as strict as the real one's: current per thread, counted, gone with
// the last release, and every handle belongs to one.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_FAKE_FAKE_CONTEXTS_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_FAKE_FAKE_CONTEXTS_H_

#include <cuda.h>

#include <memory>
#include <mutex>

namespace hyperframes {

struct QueuedStream;

struct FakeContext {
  explicit FakeContext(CUdevice of) : device(of) {}
  const CUdevice device;
  int retained = 0;
  // The real driver holds a lock of the context while it waits for room in a stream's queue, so
  // that other threads' calls stand still with it.
  std::mutex queueing;
  std::shared_ptr<QueuedStream> default_stream;  // Made with the first work on it.
};

// Of this thread; null: none, or it has been destroyed.
FakeContext* CurrentFakeContext();

// Whether this process may call the driver: it was started here, and not in a parent that forked.
bool FakeDriverIsReady();
// False: CUDA_VISIBLE_DEVICES, which counts as it is now, shows none.
bool StartFakeDriver();

// Devices that CUDA_VISIBLE_DEVICES shows, in CUDA's order.
int VisibleFakeGpus();
// As NVML counts; -1: there is no such device.
int IndexOfFakeGpu(CUdevice device);
// -1: hidden from this process.
CUdevice DeviceOfFakeGpu(int index);

// Ends the process with a sentence: what the real driver leaves undefined.
[[noreturn]] void FakeUndefined(const char* what);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_FAKE_FAKE_CONTEXTS_H_
