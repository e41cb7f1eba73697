// A planner of values as a planner of messages.
#ifndef HYPERFRAMES_COORDINATOR_PLANS_PLANNER_FUNCTION_H_
#define HYPERFRAMES_COORDINATOR_PLANS_PLANNER_FUNCTION_H_

#include <memory>

#include "coordinator/planner/planner.h"
#include "coordinator/plans/plan_desk.h"

namespace hyperframes {

// Statuses are those of FromProto (plan_wire.h) and Planner::Plan. Thread-safe, as the planner is.
PlanFunction PlanWith(std::shared_ptr<const Planner> planner);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANS_PLANNER_FUNCTION_H_
