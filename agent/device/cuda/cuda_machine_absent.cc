// The CUDA backend of a build that found no toolkit.
#include "agent/device/cuda/cuda_machine.h"

namespace hyperframes {

absl::StatusOr<std::unique_ptr<CudaMachine>> CudaMachine::Open(
    const CudaMachineOptions& /*options*/) {
  return absl::UnimplementedError(
      "this build has no CUDA backend: build it where a CUDA toolkit is installed (CUDA_HOME)");
}

}  // namespace hyperframes
