// For a build that found no toolkit: there is no GPU to come here with.
#include "agent/device/cuda/default_stream.h"

namespace hyperframes {

absl::Status DefaultStreamFill(const Device& /*gpu*/, void* /*data*/, char /*value*/,
                               Bytes /*bytes*/) {
  return absl::UnimplementedError("this build has no CUDA backend");
}

absl::Status DefaultStreamRead(const Device& /*gpu*/, const void* /*data*/, void* /*to*/,
                               Bytes /*bytes*/) {
  return absl::UnimplementedError("this build has no CUDA backend");
}

}  // namespace hyperframes
