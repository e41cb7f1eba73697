#include "tests/bench/plain_transfer.h"

namespace hyperframes {

absl::StatusOr<std::unique_ptr<PlainTransfer>> StartPlainNccl(const PlainNcclOptions& /*options*/) {
  return absl::UnimplementedError("this build has no CUDA backend");
}

absl::Status RunPlainNcclPeer(const std::string& /*id*/, const PlainNcclOptions& /*options*/) {
  return absl::UnimplementedError("this build has no CUDA backend");
}

}  // namespace hyperframes
