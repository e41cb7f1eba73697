#include "agent/device/nccl/collective_probe.h"

namespace hyperframes {

absl::StatusOr<std::unique_ptr<CollectiveProbe>> CollectiveProbe::Open(
    const CudaMachine* /*machine*/, const NcclLibrary* /*library*/, Bytes /*most_bytes*/,
    const Clock* /*clock*/) {
  return absl::UnimplementedError("this build has no CUDA backend");
}

}  // namespace hyperframes
