#include "coordinator/plans/lease_reclaimer.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>

#include "coordinator/jobs/job_state.h"

namespace hyperframes {

std::string LeaseReclaimer::ReasonToEnd(const v1::LeaseRecord& lease) const {
  if (lease.state() == v1::LEASE_STATE_REVOKING) return "aborted";
  if (lease.state() == v1::LEASE_STATE_PREPARED && lease.epoch() < epoch_) return "aborted";
  const absl::StatusOr<JobBook::Record> job = jobs_->Get(lease.job_id());
  if (absl::IsNotFound(job.status())) return "job_end";
  if (!job.ok()) return "";
  if (IsFinalJobState((*job)->state())) return "job_end";
  const bool ended = std::all_of((*job)->workers().begin(), (*job)->workers().end(),
                                 [](const auto& worker) { return worker.released(); });
  return (*job)->state() == v1::JOB_STATE_RESTARTING && ended ? "worker_died" : "";
}

bool LeaseReclaimer::RevokeFirst(const v1::LeaseRecord& lease, const std::string& address,
                                 const std::string& reason) {
  if (lease.state() != v1::LEASE_STATE_COMMITTED) return true;
  const auto revoked = revoked_.find(lease.lease_id());
  if (revoked != revoked_.end()) {
    // Its agent reports the end, which takes the record away.
    return clock_->Now() - revoked->second >= kHolderGrace + kRevocationMargin;
  }
  v1::RevokeLeaseRequest request;
  request.set_epoch(epoch_);
  request.set_lease_id(lease.lease_id());
  request.set_grace_s(absl::ToDoubleSeconds(kHolderGrace));
  const absl::StatusOr<v1::LeaseReport> answer = agents_->RevokeLease(address, request);
  // Where it cannot be revoked (not committed there, or an older agent) it is released.
  if (!answer.ok()) return true;
  if (answer->state() == v1::LEASE_STATE_REVOKING) {
    LOG(WARNING) << "lease " << lease.lease_id() << " of job " << lease.job_id() << " (" << reason
                 << ") is still held; its holder has " << absl::FormatDuration(kHolderGrace);
    revoked_[lease.lease_id()] = clock_->Now();
    return false;
  }
  const absl::Status removed = leases_->Remove(lease.lease_id(), reason);
  if (!removed.ok()) LOG(WARNING) << "lease " << lease.lease_id() << ": " << removed;
  return false;
}

void LeaseReclaimer::RunOnce() {
  for (auto it = revoked_.begin(); it != revoked_.end();) {
    it = leases_->Contains(it->first) ? std::next(it) : revoked_.erase(it);
  }
  for (const v1::LeaseRecord& lease : leases_->All()) {
    const std::string reason = ReasonToEnd(lease);
    if (reason.empty()) continue;
    const auto later = not_before_.find(lease.node());
    if (later != not_before_.end() && clock_->Now() < later->second) continue;
    const absl::StatusOr<Node> node = registry_->Find(lease.node());
    if (!node.ok() || node->info.state() != v1::NODE_STATE_ALIVE) continue;
    if (!RevokeFirst(lease, node->info.agent_address(), reason)) continue;
    v1::LeaseRequest request;
    request.set_epoch(epoch_);
    request.set_lease_id(lease.lease_id());
    request.set_reason(reason);
    const absl::StatusOr<v1::LeaseReport> released =
        agents_->ReleaseLease(node->info.agent_address(), request);
    if (!released.ok() && !absl::IsNotFound(released.status())) {
      LOG(WARNING) << "lease " << lease.lease_id() << ": " << released.status();
      not_before_[lease.node()] = clock_->Now() + absl::Seconds(1);
      continue;
    }
    const absl::Status removed = leases_->Remove(lease.lease_id(), reason);
    if (!removed.ok()) LOG(WARNING) << "lease " << lease.lease_id() << ": " << removed;
  }
}

}  // namespace hyperframes
