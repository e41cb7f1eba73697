#include "coordinator/plans/lease_book.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr char kLeasePrefix[] = "leases/";
constexpr char kPlanPrefix[] = "plans/";
constexpr int kMaxLeases = 1000000;

}  // namespace

absl::StatusOr<std::unique_ptr<LeaseBook>> LeaseBook::Load(
    Store* store, std::function<void(const std::string& reason)> on_reclaimed) {
  std::unique_ptr<LeaseBook> book(new LeaseBook(store, std::move(on_reclaimed)));
  HF_ASSIGN_OR_RETURN(const std::vector<StoreEntry> entries, store->List(kLeasePrefix, kMaxLeases));
  MutexLock lock(&book->mutex_);
  for (const StoreEntry& entry : entries) {
    v1::LeaseRecord record;
    if (!record.ParseFromString(entry.value) || kLeasePrefix + record.lease_id() != entry.key) {
      return absl::DataLossError(
          absl::StrCat("the store's record '", entry.key, "' cannot be read; restore a backup"));
    }
    book->leases_[record.lease_id()] = record;
  }
  return book;
}

absl::Status LeaseBook::Write(const std::vector<v1::LeaseRecord>& leases, Transaction transaction) {
  for (const v1::LeaseRecord& lease : leases) {
    transaction.puts.push_back({kLeasePrefix + lease.lease_id(), lease.SerializeAsString()});
  }
  if (transaction.puts.empty()) return absl::OkStatus();
  HF_RETURN_IF_ERROR(store_->Commit(transaction).status());
  MutexLock lock(&mutex_);
  for (const v1::LeaseRecord& lease : leases) leases_[lease.lease_id()] = lease;
  return absl::OkStatus();
}

absl::Status LeaseBook::Add(const std::vector<v1::LeaseRecord>& leases) {
  MutexLock writing(&write_mutex_);
  return Write(leases, Transaction());
}

absl::Status LeaseBook::CommitPlan(const v1::PlanRecord& plan,
                                   const std::vector<v1::LeaseRecord>& leases) {
  MutexLock writing(&write_mutex_);
  std::vector<v1::LeaseRecord> committed = leases;
  for (v1::LeaseRecord& lease : committed) {
    if (!Contains(lease.lease_id())) {
      return absl::AbortedError(absl::StrCat("lease ", lease.lease_id(), " on ", lease.device(),
                                             " ended while its plan was made; plan again"));
    }
    lease.set_state(v1::LEASE_STATE_COMMITTED);
  }
  Transaction transaction;
  transaction.puts.push_back({kPlanPrefix + plan.job_id(), plan.SerializeAsString()});
  return Write(committed, std::move(transaction));
}

absl::Status LeaseBook::Revoke(const std::vector<v1::LeaseRecord>& leases) {
  MutexLock writing(&write_mutex_);
  std::vector<v1::LeaseRecord> revoking;
  for (v1::LeaseRecord lease : leases) {
    if (!Contains(lease.lease_id())) continue;
    lease.set_state(v1::LEASE_STATE_REVOKING);
    revoking.push_back(std::move(lease));
  }
  return Write(revoking, Transaction());
}

absl::Status LeaseBook::Remove(const std::string& lease_id, const std::string& reason) {
  {
    MutexLock writing(&write_mutex_);
    if (!Contains(lease_id)) return absl::OkStatus();
    Transaction transaction;
    transaction.deletes.push_back(kLeasePrefix + lease_id);
    HF_RETURN_IF_ERROR(store_->Commit(transaction).status());
    MutexLock lock(&mutex_);
    leases_.erase(lease_id);
  }
  if (on_reclaimed_) on_reclaimed_(reason);
  return absl::OkStatus();
}

absl::StatusOr<v1::PlanRecord> LeaseBook::GetPlan(const std::string& job_id) {
  const absl::StatusOr<StoreEntry> entry = store_->Get(kPlanPrefix + job_id);
  if (absl::IsNotFound(entry.status())) {
    return absl::NotFoundError(absl::StrCat("job '", job_id.substr(0, 64), "' has no plan yet"));
  }
  HF_RETURN_IF_ERROR(entry.status());
  v1::PlanRecord record;
  if (!record.ParseFromString(entry->value)) {
    return absl::DataLossError(
        absl::StrCat("the store's record '", entry->key, "' cannot be read; restore a backup"));
  }
  return record;
}

std::vector<v1::LeaseRecord> LeaseBook::All() const {
  MutexLock lock(&mutex_);
  std::vector<v1::LeaseRecord> all;
  for (const auto& named : leases_) all.push_back(named.second);
  return all;
}

std::vector<v1::LeaseRecord> LeaseBook::OfJob(const std::string& job_id) const {
  MutexLock lock(&mutex_);
  std::vector<v1::LeaseRecord> found;
  for (const auto& named : leases_) {
    if (named.second.job_id() == job_id) found.push_back(named.second);
  }
  return found;
}

bool LeaseBook::Contains(const std::string& lease_id) const {
  MutexLock lock(&mutex_);
  return leases_.count(lease_id) > 0;
}

Bytes LeaseBook::lent_bytes() const {
  MutexLock lock(&mutex_);
  Bytes sum = 0;
  for (const auto& named : leases_) sum += named.second.bytes();
  return sum;
}

absl::StatusOr<std::vector<std::string>> LeaseBook::ApplyReports(
    const std::string& node, const std::vector<v1::LeaseReport>& reports) {
  std::vector<std::string> unknown;
  std::vector<std::pair<std::string, std::string>> ended;  // Id and reason.
  {
    MutexLock lock(&mutex_);
    for (const v1::LeaseReport& report : reports) {
      const auto found = leases_.find(report.lease_id());
      const bool ours = found != leases_.end() && found->second.node() == node;
      if (report.state() == v1::LEASE_STATE_RELEASED) {
        if (ours) ended.emplace_back(report.lease_id(), report.release_reason());
        continue;
      }
      if (!ours) unknown.push_back(report.lease_id());
    }
  }
  for (const auto& lease : ended) HF_RETURN_IF_ERROR(Remove(lease.first, lease.second));
  return unknown;
}

}  // namespace hyperframes
