#include "coordinator/plans/planner_function.h"

#include <utility>

#include "common/status_macros.h"
#include "coordinator/wire/plan_wire.h"

namespace hyperframes {

PlanFunction PlanWith(std::shared_ptr<const Planner> planner) {
  return [planner =
              std::move(planner)](const v1::PlanProblem& message) -> absl::StatusOr<v1::FramePlan> {
    HF_ASSIGN_OR_RETURN(const PlanProblem problem, FromProto(message));
    HF_ASSIGN_OR_RETURN(const FramePlan plan, planner->Plan(problem));
    return ToProto(plan, /*epoch=*/0);
  };
}

}  // namespace hyperframes
