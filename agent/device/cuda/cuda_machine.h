// Room: agent/device/cuda. GPUs through CUDA's driver: copies on streams, memory lent by exported
// allocations, host memory pinned. It must not know frames, plans, leases or gRPC. This header
// needs no toolkit, and the room's libraries are opened at run time: a build with it starts
// anywhere.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_MACHINE_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_MACHINE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/device/device.h"
#include "agent/device/gpu_machine.h"
#include "common/units.h"

namespace hyperframes {

struct CudaMachineOptions {
  std::string node = "local";  // Host memory is the device "host:<node>".
  Bytes host_bytes = -1;       // Lendable host memory; 0 = none, -1 = half of what is available.
  Bytes reserve_bytes = kGiB;  // Of every GPU's free memory, never lent.
  // Times copies and waits with two more events each, for Stream::copy_busy and
  // Device::measured_exposed_wait.
  bool measure = false;
};

// The GPUs that this process can see; those that only lend get no context. Thread-safe: nothing
// changes after Open. Outlives the engines on its devices.
class CudaMachine : public GpuMachine {
 public:
  // NotFound: no driver, or no GPU. FailedPrecondition: a driver that does not start.
  // Unimplemented: the build has no CUDA backend. InvalidArgument: sizes below 0.
  static absl::StatusOr<std::unique_ptr<CudaMachine>> Open(const CudaMachineOptions& options);

  // What `gpu` could lend now: its free memory less the reserve.
  virtual Bytes LendableBytes(const Device& gpu) const = 0;
  // UUIDs of GPUs on this node that CUDA_VISIBLE_DEVICES hides from this process. They can lend
  // through an agent, not to an embedded process.
  virtual std::vector<std::string> HiddenGpus() const = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_MACHINE_H_
