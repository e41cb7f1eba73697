// Gives back what no living job holds: level-triggered, a pass whenever the reconciler passes.
#ifndef HYPERFRAMES_COORDINATOR_PLANS_LEASE_RECLAIMER_H_
#define HYPERFRAMES_COORDINATOR_PLANS_LEASE_RECLAIMER_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/jobs/agent_client.h"
#include "coordinator/jobs/job_book.h"
#include "coordinator/membership/node_registry.h"
#include "coordinator/plans/lease_book.h"

namespace hyperframes {

// For a process that holds a lease of a job that has ended.
constexpr absl::Duration kHolderGrace = absl::Seconds(10);
// And for its agent to end it: then the lease is released, whoever maps it.
constexpr absl::Duration kRevocationMargin = absl::Seconds(5);

class LeaseReclaimer {
 public:
  // Everything must outlive the reclaimer.
  LeaseReclaimer(int64_t epoch, LeaseBook* leases, const JobBook* jobs,
                 const NodeRegistry* registry, AgentClient* agents, const Clock* clock)
      : epoch_(epoch),
        leases_(leases),
        jobs_(jobs),
        registry_(registry),
        agents_(agents),
        clock_(clock) {}

  // Releases leases of ended or forgotten jobs and of attempts that ended, revoked ones, and those
  // that an earlier leadership prepared and never committed. A committed one may have a holder that
  // outlived its job (a child that left the worker's tree, a process that attached): memory that is
  // mapped is not free, so it is revoked first, with kHolderGrace, and its agent ends a holder that
  // keeps it. What cannot be asked now is asked on a later pass. One thread.
  void RunOnce();

 private:
  // False: the lease need not be released now, for it has ended or its holder has time left.
  bool RevokeFirst(const v1::LeaseRecord& lease, const std::string& address,
                   const std::string& reason);
  // Why the lease is to end, or "" when it is not.
  std::string ReasonToEnd(const v1::LeaseRecord& lease) const;

  const int64_t epoch_;
  LeaseBook* const leases_;
  const JobBook* const jobs_;
  const NodeRegistry* const registry_;
  AgentClient* const agents_;
  const Clock* const clock_;
  std::map<std::string, absl::Time> not_before_;  // By node, after a failed call.
  std::map<std::string, absl::Time> revoked_;     // By lease, while its holder has time.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANS_LEASE_RECLAIMER_H_
