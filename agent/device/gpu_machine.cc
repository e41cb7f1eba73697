#include "agent/device/gpu_machine.h"

#include "absl/strings/str_join.h"

namespace hyperframes {

std::map<std::string, std::string> CudaWorkerVariables(const Device& own,
                                                       const std::vector<std::string>& visible) {
  const std::string& uuid = own.description().uuid;
  return {{"HYPERFRAMES_BACKEND", "cuda"},
          {"CUDA_VISIBLE_DEVICES", visible.empty() ? uuid : absl::StrJoin(visible, ",")}};
}

}  // namespace hyperframes
