// Room: coordinator/plans. From profiles to committed leases. It knows agents only through
// AgentClient, planners only as a function, and no gRPC. This file: the durable records of leases
// and plans.
#ifndef HYPERFRAMES_COORDINATOR_PLANS_LEASE_BOOK_H_
#define HYPERFRAMES_COORDINATOR_PLANS_LEASE_BOOK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/units.h"
#include "coordinator/store/store.h"
#include "hyperframes/v1/membership.pb.h"
#include "hyperframes/v1/records.pb.h"

namespace hyperframes {

// A lease's record is written before its agent is first asked for it and deleted after the agent
// gave it back, so that a coordinator that is killed in between always knows what may be out there.
class LeaseBook {
 public:
  // Reads all leases. `on_reclaimed`, which may be empty, is told the reason of each ended lease.
  // DataLoss names a record that cannot be read; else the store's statuses.
  static absl::StatusOr<std::unique_ptr<LeaseBook>> Load(
      Store* store, std::function<void(const std::string& reason)> on_reclaimed);

  // Writes new records. Store's statuses. Thread-safe, like all here.
  absl::Status Add(const std::vector<v1::LeaseRecord>& leases);
  // In one transaction: the plan, and its leases COMMITTED. Aborted: a lease of it has ended
  // meanwhile.
  absl::Status CommitPlan(const v1::PlanRecord& plan, const std::vector<v1::LeaseRecord>& leases);
  // Marks leases as REVOKING: they are to be released, however long that takes.
  absl::Status Revoke(const std::vector<v1::LeaseRecord>& leases);
  // Deletes the record of a lease that is known to be gone. OK when there is none.
  absl::Status Remove(const std::string& lease_id, const std::string& reason);

  // NotFound: no plan was committed for the job.
  absl::StatusOr<v1::PlanRecord> GetPlan(const std::string& job_id);

  std::vector<v1::LeaseRecord> All() const;
  std::vector<v1::LeaseRecord> OfJob(const std::string& job_id) const;
  bool Contains(const std::string& lease_id) const;
  Bytes lent_bytes() const;

  // Reconciles with the full list of a node's leases; returns the ids that nobody knows here. A
  // lease that the list lacks stays on record: a restarted agent reports it only once the worker
  // that maps it has handed it back, and until then its memory is still in use.
  absl::StatusOr<std::vector<std::string>> ApplyReports(
      const std::string& node, const std::vector<v1::LeaseReport>& reports);

 private:
  LeaseBook(Store* store, std::function<void(const std::string&)> on_reclaimed)
      : store_(store), on_reclaimed_(std::move(on_reclaimed)) {}

  absl::Status Write(const std::vector<v1::LeaseRecord>& leases, Transaction transaction);

  Store* const store_;
  const std::function<void(const std::string&)> on_reclaimed_;
  // One writer at a time; readers never wait for the disk.
  Mutex write_mutex_ HF_ACQUIRED_BEFORE(mutex_);
  mutable Mutex mutex_;
  std::map<std::string, v1::LeaseRecord> leases_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANS_LEASE_BOOK_H_
