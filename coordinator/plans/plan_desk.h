// Where the ranks of a job bring their profiles and get one plan, with its leases committed.
#ifndef HYPERFRAMES_COORDINATOR_PLANS_PLAN_DESK_H_
#define HYPERFRAMES_COORDINATOR_PLANS_PLAN_DESK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/jobs/agent_client.h"
#include "coordinator/jobs/job_book.h"
#include "coordinator/membership/node_registry.h"
#include "coordinator/plans/lease_book.h"
#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

// A planner, seen from here: as Planner::Plan, in the wire's own messages.
using PlanFunction = std::function<absl::StatusOr<v1::FramePlan>(const v1::PlanProblem&)>;

class PlanDesk {
 public:
  struct Options {
    int64_t epoch = 0;
    absl::Duration wait = absl::Seconds(60);  // For the other ranks.
    // Told how long each committed plan took, and its epoch.
    std::function<void(absl::Duration, int64_t)> on_plan;
  };

  // Everything must outlive the desk.
  PlanDesk(Options options, PlanFunction planner, JobBook* jobs, LeaseBook* leases,
           const NodeRegistry* registry, AgentClient* agents, const Clock* clock);

  // Blocks until all ranks of the job have brought a profile and the plan is committed, in the
  // store and on every agent. A rank that calls again replaces its profile; once the plan is
  // committed, the same profile gets the same answer, and another opens a new round, whose plan has
  // the next epoch and replaces all leases (so every rank is at a quiescent point when it calls).
  // NotFound, PermissionDenied (not this job's token), FailedPrecondition (the job does not run),
  // InvalidArgument (names the field), DeadlineExceeded (names the missing ranks), Aborted
  // (overtaken, ask again), ResourceExhausted (the planner's or an agent's own words), Unavailable
  // (an agent cannot be asked, or the coordinator stops). After an error no lease of the round
  // remains. The answer carries the rank's GPU and its measured links to what it leases.
  // Thread-safe.
  absl::StatusOr<v1::CreatePlanResponse> CreatePlan(const v1::CreatePlanRequest& request);

  // The job's last committed plan. NotFound.
  absl::StatusOr<v1::FramePlan> GetPlan(const std::string& job_id);

  // Calls that wait for other ranks.
  int waiting() const;

  // Ends all waits with Unavailable, now and later.
  void Stop();

 private:
  struct Round {
    std::vector<bool> present;
    std::vector<v1::CreatePlanRequest> requests;
    std::vector<std::string> digests;
    bool planning = false;
    bool done = false;
    int waiting = 0;
    absl::Status status;
    v1::PlanRecord plan;
  };

  absl::StatusOr<JobBook::Record> Admit(const v1::CreatePlanRequest& request) const;
  std::shared_ptr<Round> RoundFor(const v1::JobRecord& job) HF_REQUIRES(mutex_);
  absl::Status Wait(const v1::CreatePlanRequest& request, const std::shared_ptr<Round>& round)
      HF_REQUIRES(mutex_);
  absl::StatusOr<v1::PlanRecord> MakePlan(const v1::JobRecord& job, const Round& round);
  // A plan, with its leases committed. Another node may be gone before anybody has noticed: where
  // such a one does not answer, the job is planned without other nodes, and where that does not fit
  // the first failure stands.
  absl::Status PlanAndLease(const v1::JobRecord& job, const Round& round, int64_t epoch,
                            v1::PlanRecord* record);
  absl::StatusOr<v1::FramePlan> AskPlanner(const v1::JobRecord& job, const Round& round,
                                           bool across_nodes);
  absl::Status TakeLeases(const v1::JobRecord& job, const v1::PlanRecord& plan);
  // Fills in where the transfers of leases on other nodes are reached.
  absl::Status PrepareAndCommit(std::vector<v1::LeaseRecord>* leases);
  // Releases on the agents; what cannot be released now is left to the reclaimer.
  void GiveBack(const std::vector<v1::LeaseRecord>& leases, const std::string& reason);
  std::vector<v1::LeaseRecord> LeasesOf(const v1::JobRecord& job, const v1::PlanRecord& plan) const;
  absl::StatusOr<std::string> AgentAddress(const std::string& node) const;
  absl::StatusOr<v1::CreatePlanResponse> Answer(const v1::JobRecord& job, int rank,
                                                const v1::PlanRecord& plan) const;

  const Options options_;
  const PlanFunction planner_;
  JobBook* const jobs_;
  LeaseBook* const leases_;
  const NodeRegistry* const registry_;
  AgentClient* const agents_;
  const Clock* const clock_;
  mutable Mutex mutex_;  // Never held while an agent, the store or the planner is asked.
  CondVar changed_;
  std::map<std::string, std::shared_ptr<Round>> rounds_ HF_GUARDED_BY(mutex_);
  bool stopped_ HF_GUARDED_BY(mutex_) = false;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANS_PLAN_DESK_H_
