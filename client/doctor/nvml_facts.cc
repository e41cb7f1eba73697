#include "client/doctor/nvml_facts.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"

namespace hyperframes {
namespace doctor {
namespace {

GpuFacts* FindOrAdd(const GpuCondition& condition, Facts* facts) {
  for (GpuFacts& gpu : facts->gpus) {
    if (gpu.uuid == condition.uuid) return &gpu;
  }
  GpuFacts gpu;
  gpu.uuid = condition.uuid;
  gpu.name = condition.name;
  gpu.visible = !(facts->driver_tried && facts->driver.ok());
  facts->gpus.push_back(std::move(gpu));
  return &facts->gpus.back();
}

}  // namespace

void AddCondition(const NodeCondition& node, Facts* facts) {
  facts->driver_version = node.driver_version;
  for (const GpuCondition& condition : node.gpus) {
    GpuFacts* const gpu = FindOrAdd(condition, facts);
    gpu->nvlinks = condition.active_nvlinks;
    gpu->nvlink_version = condition.nvlink_version;
    gpu->pcie_generation = condition.pcie_generation;
    gpu->most_pcie_generation = condition.most_pcie_generation;
    gpu->pcie_width = condition.pcie_width;
    gpu->most_pcie_width = condition.most_pcie_width;
    gpu->uncorrected_errors = condition.uncorrected_errors;
    gpu->row_remap_failed = condition.row_remap_failed;
    gpu->row_remap_pending = condition.row_remap_pending;
    gpu->mig = condition.mig;
    gpu->persistence = condition.persistence;
  }
  for (const PeerRefusal& refusal : node.refusals) {
    facts->peer_access.push_back({refusal.from, refusal.to, refusal.reason});
  }
}

void NvmlFactSource::Collect(absl::Time /*deadline*/, Facts* facts) {
  const absl::StatusOr<NodeCondition> node = ReadNodeCondition();
  // Without NVML the links promise nothing known; that CUDA's driver is missing is said elsewhere.
  if (node.ok()) AddCondition(*node, facts);
}

}  // namespace doctor
}  // namespace hyperframes
