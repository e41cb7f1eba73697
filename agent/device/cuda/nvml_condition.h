// In what condition NVML says the node's GPUs are: links, slots, memory errors, partitions. Read
// for a diagnosis, not in a step. Works without CUDA's toolkit, without a context, and for GPUs
// that CUDA_VISIBLE_DEVICES hides.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_NVML_CONDITION_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_NVML_CONDITION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace hyperframes {

// Zero, false or absent where NVML or the GPU does not tell.
struct GpuCondition {
  std::string uuid;
  std::string name;
  int active_nvlinks = 0;
  int nvlink_version = 0;  // nvmlNvlinkVersion_t: 6 is NVLink 4.
  int pcie_generation = 0;
  int most_pcie_generation = 0;
  int pcie_width = 0;
  int most_pcie_width = 0;
  absl::optional<int64_t> uncorrected_errors;  // Since the driver was loaded.
  bool row_remap_failed = false;
  bool row_remap_pending = false;
  bool mig = false;
  absl::optional<bool> persistence;
};

struct PeerRefusal {
  std::string from;
  std::string to;
  std::string reason;
};

struct NodeCondition {
  std::string driver_version;
  std::vector<GpuCondition> gpus;
  std::vector<PeerRefusal> refusals;  // Pairs that may not read each other's memory.
};

// Codes as Nvml::Get.
absl::StatusOr<NodeCondition> ReadNodeCondition();

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_NVML_CONDITION_H_
