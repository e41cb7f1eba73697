// The planner for embedded mode: a problem as JSON in, a plan as JSON out.
#include "coordinator/planner/planner.h"

#include "client/c/boundary.h"
#include "client/c/hyperframes.h"
#include "client/cpp/message_json.h"
#include "common/status_macros.h"
#include "coordinator/wire/plan_wire.h"
#include "hyperframes/v1/plan.pb.h"

namespace hyperframes {
namespace {

absl::StatusOr<std::string> Plan(const std::string& problem_json) {
  v1::PlanProblem message;
  HF_RETURN_IF_ERROR(ParseMessage(problem_json, "problem_json", &message));
  HF_ASSIGN_OR_RETURN(const PlanProblem problem, FromProto(message));
  HF_ASSIGN_OR_RETURN(const FramePlan plan, MakeGreedyPlanner()->Plan(problem));
  return WriteMessage(ToProto(plan, /*epoch=*/0));
}

}  // namespace
}  // namespace hyperframes

extern "C" {

hf_code hf_plan(const char* problem_json, char** plan_json) {
  return hyperframes::Guarded("hf_plan", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(hyperframes::RequireArgument(problem_json, "problem_json"));
    HF_RETURN_IF_ERROR(hyperframes::RequireArgument(plan_json, "plan_json"));
    HF_ASSIGN_OR_RETURN(const std::string json, hyperframes::Plan(problem_json));
    return hyperframes::CopyOut(json, plan_json);
  });
}

}  // extern "C"
