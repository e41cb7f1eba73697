// What tests of the planner ask of any plan.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_PLAN_CHECKS_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_PLAN_CHECKS_H_

#include "coordinator/planner/planner.h"

namespace hyperframes {

// The plan; a test failure, and an empty plan of the right size, where there is none.
FramePlan MustPlan(const PlanProblem& problem);

// Blocks of the first rank with this policy.
int CountOf(const FramePlan& plan, Policy policy);

// What must hold for any plan, whatever decided it.
void ExpectSound(const PlanProblem& problem, const FramePlan& plan);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_PLAN_CHECKS_H_
