// Whose memory an address of the fake driver is, and who may use it.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_FAKE_FAKE_MEMORY_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_FAKE_FAKE_MEMORY_H_

#include <cuda.h>

#include <memory>

namespace hyperframes {

// A mapping or a pinned range. Work on a stream holds it from when it is queued until it is over:
// whoever takes the range away meanwhile is found out.
struct FakeRange {};

enum class FakeAccess {
  kDevice,    // Mapped for the device, or pinned: copies are asynchronous.
  kPageable,  // The processor's memory: copies are over when the call returns.
  kNone,      // Reserved, not mapped there, or mapped for another device only.
};

struct FakeAddress {
  FakeAccess access = FakeAccess::kNone;
  std::shared_ptr<FakeRange> held;  // Null for pageable memory.
};

// Of all `bytes` at `address`, for a copy that `device` makes.
FakeAddress LookUp(CUdeviceptr address, size_t bytes, CUdevice device);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_FAKE_FAKE_MEMORY_H_
