// Room: agent/arena. Which job holds which bytes on which device of this node, and the one fresh
// allocation behind each lease. It knows devices and processes; it must not know gRPC, plans, or
// what the bytes mean.
//
// Life of a lease:
//   PREPARED -> COMMITTED -> REVOKING -> RELEASED, and from every state straight to RELEASED.
// PREPARED falls back to RELEASED after kPrepareTimeout. Nothing leaves RELEASED.
#ifndef HYPERFRAMES_AGENT_ARENA_LEASE_TABLE_H_
#define HYPERFRAMES_AGENT_ARENA_LEASE_TABLE_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/arena/lease.h"
#include "agent/device/device.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/unique_fd.h"

namespace hyperframes {

// Where leases are remembered across a restart of the agent. Thread-safe.
class LeaseJournal {
 public:
  virtual ~LeaseJournal() = default;
  virtual absl::Status Save(const LeaseRecord& record) = 0;
  virtual void Forget(const std::string& lease_id) = 0;
};

// One device that lends. `device` outlives the table.
struct LendingDevice {
  Device* device = nullptr;
  Bytes reserve_bytes = 0;  // Never lent.
};

constexpr absl::Duration kPrepareTimeout = absl::Seconds(30);
// How long a restarted agent waits for living workers to hand their leases back.
constexpr absl::Duration kAdoptionTimeout = absl::Seconds(10);
// A node holds at most this many leases at once, and remembers as many released ones for reports.
constexpr size_t kMostLeases = 65536;
constexpr size_t kMostReleasedRemembered = 4096;

// Thread-safe.
class LeaseTable {
 public:
  // `clock` and `journal` (may be null: nothing survives a restart) outlive the table.
  LeaseTable(const std::vector<LendingDevice>& devices, const Clock* clock, LeaseJournal* journal);

  // Takes over what an earlier agent of this node left: leases that a living process has mapped are
  // awaited, others get fresh memory (nobody has seen theirs). Call once, before anything else.
  void Restore(std::vector<LeaseRecord> records);

  // Sets bytes aside and allocates them. The same call again gives the same answer.
  // InvalidArgument: unreadable id, token, bytes; AlreadyExists: the id with other arguments, or
  // one that was released; NotFound: no such device; ResourceExhausted names device, asked, free;
  // Unavailable: workers of the earlier agent have not reported yet.
  absl::StatusOr<LeaseRecord> Prepare(const LeaseRecord& wanted);
  // Makes it mappable. Idempotent. NotFound: unknown, or the prepare timed out.
  // FailedPrecondition: being revoked.
  absl::StatusOr<LeaseRecord> Commit(const std::string& lease_id);
  // It is asked for: nobody else can map it. One that nobody has mapped ends here; for another,
  // Overdue tells when its holder has had `grace`. Idempotent: the first grace counts. NotFound:
  // unknown. FailedPrecondition: not committed.
  absl::StatusOr<LeaseRecord> Revoke(const std::string& lease_id,
                                     absl::Duration grace = absl::InfiniteDuration());
  bool IsRevoking(const std::string& lease_id) const;
  // Revoked leases whose holder has not returned them in time.
  std::vector<LeaseRecord> Overdue() const;
  // Ends it in any state: the bytes are free when this returns. Idempotent, unknown ids succeed.
  // True when it ended now.
  bool Release(const std::string& lease_id, const std::string& reason);
  // The same for the process that has it mapped, and for nobody else.
  bool ReleaseHeld(const std::string& lease_id, const ProcessIdentity& holder,
                   const std::string& reason);
  // For many at once: all bytes are free before the first record goes, whatever the disk does.
  int ReleaseAllHeld(const std::set<std::string>& lease_ids, const ProcessIdentity& holder,
                     const std::string& reason);
  // Ends every lease of this rank of this job (its worker ended). Returns how many.
  int ReleaseRank(const std::string& job_id, int rank, const std::string& reason);

  // Checks the token and remembers `holder` as the process that has it mapped. The descriptor is a
  // duplicate. NotFound: unknown or not committed. PermissionDenied: wrong token.
  struct Mapping {
    UniqueFd descriptor;
    Bytes bytes = 0;
  };
  absl::StatusOr<Mapping> Map(const std::string& lease_id, const std::string& token,
                              const ProcessIdentity& holder);
  // A descriptor handed back by the process that kept it. OK also when the lease is not missing
  // one and it is the same memory. NotFound, PermissionDenied as in Map; InvalidArgument as
  // Device::Adopt.
  absl::Status Adopt(const std::string& lease_id, const std::string& token, UniqueFd descriptor,
                     const ProcessIdentity& holder);
  // `holder` has handed back all that it holds. Leases of its that are still missing get fresh
  // memory: it was never given theirs.
  void HolderReported(const ProcessIdentity& holder);

  // Ends prepares that timed out, and awaited leases whose holder has ended or is out of time.
  void Tick(const std::function<bool(const ProcessIdentity&)>& runs);

  // Everything alive, and everything released since AcknowledgeReleased covered it.
  std::vector<LeaseRecord> Report() const;
  // The report's released leases have arrived: they need not be told again.
  void AcknowledgeReleased(const std::vector<LeaseRecord>& reported);

  std::vector<DeviceUsage> Usage() const;
  std::map<std::string, int64_t> released_by_reason() const;
  int64_t live_leases() const;

 private:
  struct Lease {
    LeaseRecord record;
    std::unique_ptr<Memory> memory;  // Null while awaited.
    absl::Time since;                // Of its state.
    bool awaited() const { return memory == nullptr; }
  };

  absl::Status CheckWanted(const LeaseRecord& wanted) const HF_REQUIRES(mutex_);
  absl::Status CheckRoom(const LeaseRecord& wanted) const HF_REQUIRES(mutex_);
  absl::StatusOr<Lease*> FindMappable(const std::string& lease_id, const std::string& token)
      HF_REQUIRES(mutex_);
  absl::Status Move(Lease* lease, LeaseState to) HF_REQUIRES(mutex_);
  bool ReleaseLocked(const std::string& lease_id, const std::string& reason) HF_REQUIRES(mutex_);
  // ReleaseLocked without deleting the record, which the caller does with Forget.
  bool EndLocked(const std::string& lease_id, const std::string& reason) HF_REQUIRES(mutex_);
  void Forget(const std::vector<std::string>& lease_ids);
  void AllocateAgain(Lease* lease) HF_REQUIRES(mutex_);
  Bytes Lent(const std::string& device) const HF_REQUIRES(mutex_);
  // What one more lease could have: less the reserve, all leases and whatever else holds memory.
  Bytes Free(const LendingDevice& lending) const HF_REQUIRES(mutex_);

  const std::map<std::string, LendingDevice> devices_;
  const Clock* const clock_;
  LeaseJournal* const journal_;
  mutable Mutex mutex_;
  std::map<std::string, Lease> leases_ HF_GUARDED_BY(mutex_);
  std::map<std::string, Bytes> lent_ HF_GUARDED_BY(mutex_);
  std::map<std::string, LeaseRecord> released_ HF_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> released_by_reason_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_LEASE_TABLE_H_
