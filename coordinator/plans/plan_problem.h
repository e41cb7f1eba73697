// What the planner is asked: the ranks' profiles against what the cluster can lend them. Pure.
#ifndef HYPERFRAMES_COORDINATOR_PLANS_PLAN_PROBLEM_H_
#define HYPERFRAMES_COORDINATOR_PLANS_PLAN_PROBLEM_H_

#include <vector>

#include "absl/status/status.h"
#include "coordinator/jobs/job_book.h"
#include "coordinator/membership/node_registry.h"
#include "hyperframes/v1/coordinator.pb.h"
#include "hyperframes/v1/plan.pb.h"
#include "hyperframes/v1/records.pb.h"

namespace hyperframes {

// `requests` has one entry per rank, in order. Devices are the GPUs and the host memory of the
// ranks' own nodes, and GPUs of other nodes as far as a network leads there. A GPU lends what is
// left of its total after its reserve and the leases on it; one that computes for any job, is
// unhealthy or whose node is not ALIVE lends nothing. The job's quotas scale what may be lent to
// it; other nodes lend what the own ones leave of its quota.
v1::PlanProblem BuildPlanProblem(const v1::JobRecord& job,
                                 const std::vector<v1::CreatePlanRequest>& requests,
                                 const std::vector<Node>& nodes,
                                 const std::vector<JobBook::Record>& active,
                                 const std::vector<v1::LeaseRecord>& leases);

// Internal: the plan misses a rank, or leases what the problem did not offer; ResourceExhausted: it
// is over one of the job's quotas. The message names rank, device and bytes.
absl::Status CheckPlan(const v1::JobRecord& job, const v1::PlanProblem& problem,
                       const v1::FramePlan& plan);

// Writes into each of the plan's leases which node lends it.
void NameLenders(const v1::PlanProblem& problem, v1::FramePlan* plan);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANS_PLAN_PROBLEM_H_
