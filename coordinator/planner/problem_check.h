// Refuses problems that contradict themselves, and orders those that do not.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_PROBLEM_CHECK_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_PROBLEM_CHECK_H_

#include "absl/status/status.h"
#include "coordinator/planner/planner.h"

namespace hyperframes {

// InvalidArgument names the field and the value: negative or absurd bytes, seconds that are
// negative or not finite, names twice, an unknown GPU, two budgets, KEEP forbidden, more than the
// planner takes.
absl::Status CheckProblem(const PlanProblem& problem);

// The same problem with devices, links and forbidden tiers in one fixed order, so that the order in
// which nodes reported never changes a plan.
PlanProblem InCanonicalOrder(PlanProblem problem);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_PROBLEM_CHECK_H_
