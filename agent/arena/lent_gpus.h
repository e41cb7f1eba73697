// The real GPUs of a node as its agent has them: their identity and how full they are from NVML,
// their memory from a Lender. Nothing of CUDA runs in this process.
#ifndef HYPERFRAMES_AGENT_ARENA_LENT_GPUS_H_
#define HYPERFRAMES_AGENT_ARENA_LENT_GPUS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/gpu_machine.h"
#include "common/units.h"

namespace hyperframes {

struct LentGpusOptions {
  std::string node = "local";
  Bytes host_bytes = -1;  // Lendable host memory; -1 = half of what is available.
  std::string program;    // The hfprobe binary: lists the GPUs that CUDA sees, and lends.
  absl::Duration patience = absl::Seconds(20);  // For the list; drivers take their time to start.
};

// The GPUs that CUDA would show to this process (CUDA_VISIBLE_DEVICES counts). Their Device objects
// allocate and adopt; what copies is Unimplemented. What CudaMachine::Open says where there are
// none; Unavailable: the program could not be started, or did not end in time.
absl::StatusOr<std::unique_ptr<GpuMachine>> OpenLentGpus(const LentGpusOptions& options);

// What the program prints for it: a line of JSON for each GPU of `machine`, or one for its status.
std::string WriteGpuLines(const absl::StatusOr<const GpuMachine*>& machine);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_LENT_GPUS_H_
