#include "agent/transfer/nccl/transfer_backend.h"

namespace hyperframes {

absl::StatusOr<std::unique_ptr<TransferBackend>> OpenCudaBackend(
    const TransferBackendOptions& /*options*/) {
  return absl::UnimplementedError(
      "this build has no CUDA backend: build where a CUDA toolkit is installed, or use --backend "
      "host");
}

}  // namespace hyperframes
