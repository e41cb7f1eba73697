#include "agent/arena/lease_table.h"

#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "agent/arena/descriptor_wire.h"
#include "common/random_id.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// The set of reasons is a metric's label: whatever a caller invents is folded into one.
const char* BoundedReason(const std::string& reason) {
  static constexpr const char* kReasons[] = {
      "job_end",  "worker_died", "aborted",      "revoked",     "returned",
      "unwanted", "timed_out",   "not_reported", "agent_reset", "disconnected"};
  for (const char* known : kReasons) {
    if (reason == known) return known;
  }
  return "other";
}

bool SameRequest(const LeaseRecord& a, const LeaseRecord& b) {
  return a.job_id == b.job_id && a.rank == b.rank && TokensEqual(a.token, b.token) &&
         a.device == b.device && a.tier == b.tier && a.bytes == b.bytes;
}

bool IsToken(const std::string& token) {
  return token.size() == 32 && std::all_of(token.begin(), token.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

absl::StatusOr<UniqueFd> Duplicate(int descriptor, const std::string& lease_id) {
  UniqueFd copy(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (copy.valid()) return copy;
  return absl::ResourceExhaustedError("no descriptor left for lease " + lease_id + " (" +
                                      strerror(errno) + "): raise the agent's ulimit -n");
}

std::map<std::string, LendingDevice> ByUuid(const std::vector<LendingDevice>& devices) {
  std::map<std::string, LendingDevice> by_uuid;
  for (const LendingDevice& lending : devices) {
    by_uuid[lending.device->description().uuid] = lending;
  }
  return by_uuid;
}

}  // namespace

LeaseTable::LeaseTable(const std::vector<LendingDevice>& devices, const Clock* clock,
                       LeaseJournal* journal)
    : devices_(ByUuid(devices)), clock_(clock), journal_(journal) {}

// Where a kill of the agent can fall, and what the next one does about it:
//
//   prepared (nothing recorded)     undone: the coordinator's Commit finds nothing, and it starts
//   over COMMITTED recorded, not told    redone: the same Commit again succeeds holder recorded,
//   descriptor     undone: the holder reports without it, or has ended, and the
//     not yet sent                    lease gets fresh memory, or ends
//   REVOKING recorded, holder       redone: it is asked when it hands the lease back (OfferLease),
//     not yet asked                   and its grace begins anew
//   released, record not yet gone   redone: by the holder's owed return, by the holder being dead,
//   by
//                                     the worker's end that is not told before its leases are gone,
//                                     or by the coordinator, which asks again or no longer wants it
void LeaseTable::Restore(std::vector<LeaseRecord> records) {
  MutexLock lock(&mutex_);
  for (LeaseRecord& record : records) {
    const std::string lease_id = record.lease_id;
    Lease& lease = leases_[lease_id];
    lease.since = clock_->Now();
    lent_[record.device] += record.bytes;
    lease.record = std::move(record);
    // A prepare is not remembered by its coordinator's second phase either: it is simply over.
    if (devices_.count(lease.record.device) == 0 || lease.record.state == LeaseState::kPrepared) {
      ReleaseLocked(lease_id, "agent_reset");
    } else if (lease.record.holder.pid == 0) {
      AllocateAgain(&lease);
    }
  }
}

// Memory that no process has seen may be replaced: both are zeros.
void LeaseTable::AllocateAgain(Lease* lease) {
  auto memory = devices_.at(lease->record.device).device->Allocate(lease->record.bytes);
  if (!memory.ok()) {
    LOG(WARNING) << "lease " << lease->record.lease_id << " ends: " << memory.status().message();
    ReleaseLocked(std::string(lease->record.lease_id), "agent_reset");
    return;
  }
  lease->memory = std::move(*memory);
}

Bytes LeaseTable::Lent(const std::string& device) const {
  const auto found = lent_.find(device);
  return found == lent_.end() ? 0 : found->second;
}

Bytes LeaseTable::Free(const LendingDevice& lending) const {
  const DeviceDescription& device = lending.device->description();
  const Bytes unlent = device.total_bytes - Lent(device.uuid);
  return std::max<Bytes>(0, std::min(unlent, lending.device->free_bytes()) - lending.reserve_bytes);
}

absl::Status LeaseTable::CheckWanted(const LeaseRecord& wanted) const {
  if (!IsWireId(wanted.lease_id) || !IsWireId(wanted.job_id)) {
    return absl::InvalidArgumentError("lease_id '" + wanted.lease_id.substr(0, 64) +
                                      "' or job_id '" + wanted.job_id.substr(0, 64) +
                                      "' is not 1 to 127 letters, digits, '.', '_', ':' or '-'");
  }
  if (!IsToken(wanted.token)) {
    return absl::InvalidArgumentError("token: 32 lower-case hex digits are needed");
  }
  if (wanted.bytes <= 0) {
    return absl::InvalidArgumentError("bytes: " + std::to_string(wanted.bytes) +
                                      " cannot be lent, at least 1 is needed");
  }
  if (devices_.count(wanted.device) == 0) {
    return absl::NotFoundError("no device '" + wanted.device.substr(0, 64) + "' on this node");
  }
  return absl::OkStatus();
}

absl::Status LeaseTable::CheckRoom(const LeaseRecord& wanted) const {
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.record.device == wanted.device && lease.awaited()) {
      return absl::UnavailableError(
          "device " + wanted.device + " lends nothing yet: after this agent's restart process " +
          std::to_string(lease.record.holder.pid) + " has not handed back lease " + lease_id +
          "; try again within " + absl::FormatDuration(kAdoptionTimeout));
    }
  }
  if (leases_.size() >= kMostLeases) {
    return absl::ResourceExhaustedError("this node holds " + std::to_string(kMostLeases) +
                                        " leases already: release some");
  }
  const LendingDevice& lending = devices_.at(wanted.device);
  const Bytes free = Free(lending);
  if (wanted.bytes > free) {
    return absl::ResourceExhaustedError(
        "device " + wanted.device + ": " + FormatBytes(wanted.bytes) + " asked, " +
        FormatBytes(free) + " free (" + FormatBytes(lending.reserve_bytes) + " kept in reserve, " +
        FormatBytes(Lent(wanted.device)) + " lent, " + FormatBytes(lending.device->free_bytes()) +
        " of " + FormatBytes(lending.device->description().total_bytes) + " not in use)");
  }
  return absl::OkStatus();
}

absl::StatusOr<LeaseRecord> LeaseTable::Prepare(const LeaseRecord& wanted) {
  MutexLock lock(&mutex_);
  HF_RETURN_IF_ERROR(CheckWanted(wanted));
  const auto existing = leases_.find(wanted.lease_id);
  if (existing != leases_.end()) {
    if (SameRequest(existing->second.record, wanted)) return existing->second.record;
    return absl::AlreadyExistsError("lease " + wanted.lease_id + " exists with other arguments");
  }
  if (released_.count(wanted.lease_id) > 0) {
    return absl::AlreadyExistsError("lease " + wanted.lease_id +
                                    " has ended: a new lease needs a new id");
  }
  HF_RETURN_IF_ERROR(CheckRoom(wanted));
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Memory> memory,
                      devices_.at(wanted.device).device->Allocate(wanted.bytes));
  Lease& lease = leases_[wanted.lease_id];
  lease.record = wanted;
  lease.record.state = LeaseState::kPrepared;
  lease.record.release_reason.clear();
  lease.record.holder = {};
  lease.memory = std::move(memory);
  lease.since = clock_->Now();
  lent_[wanted.device] += wanted.bytes;
  return lease.record;
}

absl::Status LeaseTable::Move(Lease* lease, LeaseState to) {
  if (!IsLegalMove(lease->record.state, to)) {
    return absl::FailedPreconditionError("lease " + lease->record.lease_id + " is " +
                                         LeaseStateName(lease->record.state) +
                                         " and cannot become " + LeaseStateName(to));
  }
  LeaseRecord moved = lease->record;
  moved.state = to;
  if (journal_ != nullptr) HF_RETURN_IF_ERROR(journal_->Save(moved));
  lease->record = std::move(moved);
  lease->since = clock_->Now();
  return absl::OkStatus();
}

absl::StatusOr<LeaseRecord> LeaseTable::Commit(const std::string& lease_id) {
  MutexLock lock(&mutex_);
  const auto found = leases_.find(lease_id);
  if (found == leases_.end()) {
    return absl::NotFoundError("no lease '" + lease_id.substr(0, 64) +
                               "': it was never prepared, was released, or its prepare timed out");
  }
  if (found->second.record.state != LeaseState::kCommitted) {
    HF_RETURN_IF_ERROR(Move(&found->second, LeaseState::kCommitted));
  }
  return found->second.record;
}

absl::StatusOr<LeaseRecord> LeaseTable::Revoke(const std::string& lease_id, absl::Duration grace) {
  MutexLock lock(&mutex_);
  const auto found = leases_.find(lease_id);
  if (found == leases_.end()) {
    return absl::NotFoundError("no lease '" + lease_id.substr(0, 64) + "'");
  }
  Lease& lease = found->second;
  if (lease.record.state == LeaseState::kRevoking) return lease.record;
  lease.record.revoke_grace = grace;
  HF_RETURN_IF_ERROR(Move(&lease, LeaseState::kRevoking));
  LeaseRecord revoked = lease.record;
  if (revoked.holder.pid == 0) {
    ReleaseLocked(lease_id, "revoked");
    revoked.state = LeaseState::kReleased;
    revoked.release_reason = "revoked";
  }
  return revoked;
}

bool LeaseTable::IsRevoking(const std::string& lease_id) const {
  MutexLock lock(&mutex_);
  const auto found = leases_.find(lease_id);
  return found != leases_.end() && found->second.record.state == LeaseState::kRevoking;
}

std::vector<LeaseRecord> LeaseTable::Overdue() const {
  MutexLock lock(&mutex_);
  std::vector<LeaseRecord> overdue;
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.record.state == LeaseState::kRevoking &&
        clock_->Now() - lease.since >= lease.record.revoke_grace) {
      overdue.push_back(lease.record);
    }
  }
  return overdue;
}

bool LeaseTable::Release(const std::string& lease_id, const std::string& reason) {
  MutexLock lock(&mutex_);
  return ReleaseLocked(lease_id, reason);
}

bool LeaseTable::ReleaseHeld(const std::string& lease_id, const ProcessIdentity& holder,
                             const std::string& reason) {
  MutexLock lock(&mutex_);
  const auto found = leases_.find(lease_id);
  if (found == leases_.end() || !(found->second.record.holder == holder)) return false;
  return ReleaseLocked(lease_id, reason);
}

int LeaseTable::ReleaseAllHeld(const std::set<std::string>& lease_ids,
                               const ProcessIdentity& holder, const std::string& reason) {
  std::vector<std::string> ended;
  {
    MutexLock lock(&mutex_);
    for (const std::string& lease_id : lease_ids) {
      const auto found = leases_.find(lease_id);
      if (found == leases_.end() || !(found->second.record.holder == holder)) continue;
      if (EndLocked(lease_id, reason)) ended.push_back(lease_id);
    }
  }
  Forget(ended);
  return static_cast<int>(ended.size());
}

void LeaseTable::Forget(const std::vector<std::string>& lease_ids) {
  if (journal_ == nullptr) return;
  for (const std::string& lease_id : lease_ids) journal_->Forget(lease_id);
}

bool LeaseTable::ReleaseLocked(const std::string& lease_id, const std::string& reason) {
  const std::vector<std::string> ended = {lease_id};  // The argument may live in the lease.
  if (!EndLocked(ended.front(), reason)) return false;
  Forget(ended);
  return true;
}

bool LeaseTable::EndLocked(const std::string& lease_id, const std::string& reason) {
  const auto found = leases_.find(lease_id);
  if (found == leases_.end()) return false;
  LeaseRecord record = std::move(found->second.record);
  leases_.erase(found);  // Frees the memory here, before anybody learns that there is room.
  lent_[record.device] -= record.bytes;
  // A holder that was ended for keeping it did not just die.
  const bool taken = record.state == LeaseState::kRevoking && reason != "returned";
  record.state = LeaseState::kReleased;
  record.release_reason = taken ? "revoked" : BoundedReason(reason);
  record.token.clear();
  ++released_by_reason_[record.release_reason];
  if (released_.size() >= kMostReleasedRemembered) released_.erase(released_.begin());
  const std::string key = record.lease_id;
  released_[key] = std::move(record);
  return true;
}

int LeaseTable::ReleaseRank(const std::string& job_id, int rank, const std::string& reason) {
  std::vector<std::string> ending;
  {
    MutexLock lock(&mutex_);
    for (const auto& [lease_id, lease] : leases_) {
      if (lease.record.job_id == job_id && lease.record.rank == rank) ending.push_back(lease_id);
    }
    for (const std::string& lease_id : ending) EndLocked(lease_id, reason);
  }
  Forget(ending);
  return static_cast<int>(ending.size());
}

absl::StatusOr<LeaseTable::Lease*> LeaseTable::FindMappable(const std::string& lease_id,
                                                            const std::string& token) {
  const auto found = leases_.find(lease_id);
  if (found == leases_.end() || found->second.record.state == LeaseState::kPrepared) {
    return absl::NotFoundError("no committed lease '" + lease_id.substr(0, 64) +
                               "' on this node: it has ended, or its plan was not committed");
  }
  if (!TokensEqual(found->second.record.token, token)) {
    return absl::PermissionDeniedError("the token is not that of lease " + lease_id);
  }
  return &found->second;
}

absl::StatusOr<LeaseTable::Mapping> LeaseTable::Map(const std::string& lease_id,
                                                    const std::string& token,
                                                    const ProcessIdentity& holder) {
  MutexLock lock(&mutex_);
  HF_ASSIGN_OR_RETURN(Lease* const lease, FindMappable(lease_id, token));
  if (lease->record.state == LeaseState::kRevoking) {
    return absl::NotFoundError("lease " + lease_id + " is being revoked");
  }
  if (lease->awaited()) {
    return absl::NotFoundError("lease " + lease_id + " is held by process " +
                               std::to_string(lease->record.holder.pid) +
                               ", which has not handed it back since this agent's restart");
  }
  Mapping mapping;
  HF_ASSIGN_OR_RETURN(mapping.descriptor, Duplicate(lease->memory->descriptor(), lease_id));
  mapping.bytes = lease->record.bytes;
  if (!(lease->record.holder == holder)) {
    // Remembered before the descriptor leaves: once it has, this memory is not replaceable.
    LeaseRecord held = lease->record;
    held.holder = holder;
    if (journal_ != nullptr) HF_RETURN_IF_ERROR(journal_->Save(held));
    lease->record = std::move(held);
  }
  return mapping;
}

absl::Status LeaseTable::Adopt(const std::string& lease_id, const std::string& token,
                               UniqueFd descriptor, const ProcessIdentity& holder) {
  MutexLock lock(&mutex_);
  HF_ASSIGN_OR_RETURN(Lease* const lease, FindMappable(lease_id, token));
  if (!(lease->record.holder == holder)) {
    return absl::PermissionDeniedError("lease " + lease_id + " is not held by process " +
                                       std::to_string(holder.pid));
  }
  if (lease->awaited()) {
    absl::StatusOr<std::unique_ptr<Memory>> adopted =
        devices_.at(lease->record.device).device->Adopt(descriptor.release(), lease->record.bytes);
    if (!adopted.ok()) {
      return absl::InvalidArgumentError(
          "what was handed back for lease " + lease_id +
          " is not its memory: " + std::string(adopted.status().message()));
    }
    lease->memory = *std::move(adopted);
    return absl::OkStatus();
  }
  struct stat ours, theirs;
  if (fstat(lease->memory->descriptor(), &ours) != 0 || fstat(descriptor.get(), &theirs) != 0 ||
      ours.st_ino != theirs.st_ino || ours.st_dev != theirs.st_dev) {
    return absl::NotFoundError("lease " + lease_id + " has other memory by now");
  }
  return absl::OkStatus();
}

void LeaseTable::HolderReported(const ProcessIdentity& holder) {
  MutexLock lock(&mutex_);
  std::vector<Lease*> missing;
  for (auto& [lease_id, lease] : leases_) {
    if (lease.awaited() && lease.record.holder == holder) missing.push_back(&lease);
  }
  for (Lease* lease : missing) AllocateAgain(lease);
}

void LeaseTable::Tick(const std::function<bool(const ProcessIdentity&)>& runs) {
  MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  std::vector<std::pair<std::string, const char*>> ending;
  for (const auto& [lease_id, lease] : leases_) {
    const absl::Duration age = now - lease.since;
    if (lease.record.state == LeaseState::kPrepared && age >= kPrepareTimeout) {
      ending.emplace_back(lease_id, "timed_out");
    } else if (lease.awaited() && !runs(lease.record.holder)) {
      ending.emplace_back(lease_id, "worker_died");
    } else if (lease.awaited() && age >= kAdoptionTimeout) {
      ending.emplace_back(lease_id, "not_reported");
    }
  }
  for (const auto& [lease_id, reason] : ending) ReleaseLocked(lease_id, reason);
}

std::vector<LeaseRecord> LeaseTable::Report() const {
  MutexLock lock(&mutex_);
  std::vector<LeaseRecord> report;
  report.reserve(leases_.size() + released_.size());
  for (const auto& [lease_id, lease] : leases_) {
    report.push_back(lease.record);
    report.back().token.clear();
  }
  for (const auto& [lease_id, record] : released_) report.push_back(record);
  return report;
}

void LeaseTable::AcknowledgeReleased(const std::vector<LeaseRecord>& reported) {
  MutexLock lock(&mutex_);
  for (const LeaseRecord& record : reported) {
    if (record.state == LeaseState::kReleased) released_.erase(record.lease_id);
  }
}

std::vector<DeviceUsage> LeaseTable::Usage() const {
  MutexLock lock(&mutex_);
  std::vector<DeviceUsage> usage;
  for (const auto& [uuid, lending] : devices_) {
    DeviceUsage device;
    device.device = uuid;
    device.total_bytes = lending.device->description().total_bytes;
    device.reserve_bytes = lending.reserve_bytes;
    device.lent_bytes = Lent(uuid);
    device.largest_free = Free(lending);
    device.occupied_bytes =
        std::max<Bytes>(0, device.total_bytes - device.lent_bytes - lending.device->free_bytes());
    for (const auto& [lease_id, lease] : leases_) {
      if (lease.record.device == uuid && lease.awaited()) device.awaiting_workers = true;
    }
    if (device.awaiting_workers) device.largest_free = 0;
    usage.push_back(device);
  }
  return usage;
}

std::map<std::string, int64_t> LeaseTable::released_by_reason() const {
  MutexLock lock(&mutex_);
  return released_by_reason_;
}

int64_t LeaseTable::live_leases() const {
  MutexLock lock(&mutex_);
  return static_cast<int64_t>(leases_.size());
}

}  // namespace hyperframes
