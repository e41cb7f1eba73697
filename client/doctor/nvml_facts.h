// What NVML adds to the facts about GPUs: slots, links, errors, and GPUs that CUDA does not see.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_NVML_FACTS_H_
#define HYPERFRAMES_CLIENT_DOCTOR_NVML_FACTS_H_

#include <string>

#include "agent/device/cuda/nvml_condition.h"
#include "client/doctor/facts.h"

namespace hyperframes {
namespace doctor {

// Comes after the source that copies: an idle GPU's slot runs slower, to save power.
class NvmlFactSource final : public FactSource {
 public:
  std::string name() const override { return "NVML"; }
  void Collect(absl::Time deadline, Facts* facts) override;
};

// The part without NVML. GPUs that the facts do not have yet are added, as hidden ones where CUDA
// could be asked.
void AddCondition(const NodeCondition& node, Facts* facts);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_NVML_FACTS_H_
