// The plain values of a lease: what was granted, to whom, where.
#ifndef HYPERFRAMES_AGENT_ARENA_LEASE_H_
#define HYPERFRAMES_AGENT_ARENA_LEASE_H_

#include <string>

#include "absl/time/time.h"
#include "agent/supervisor/process_identity.h"
#include "common/frame.h"
#include "common/units.h"

namespace hyperframes {

enum class LeaseState { kPrepared = 1, kCommitted = 2, kRevoking = 3, kReleased = 4 };

// The only function that knows which moves are legal. Staying is not a move.
constexpr bool IsLegalMove(LeaseState from, LeaseState to) {
  switch (from) {
    case LeaseState::kPrepared:
      return to == LeaseState::kCommitted || to == LeaseState::kReleased;
    case LeaseState::kCommitted:
      return to == LeaseState::kRevoking || to == LeaseState::kReleased;
    case LeaseState::kRevoking:
      return to == LeaseState::kReleased;
    case LeaseState::kReleased:
      return false;
  }
  return false;
}

constexpr const char* LeaseStateName(LeaseState state) {
  return state == LeaseState::kPrepared    ? "PREPARED"
         : state == LeaseState::kCommitted ? "COMMITTED"
         : state == LeaseState::kRevoking  ? "REVOKING"
                                           : "RELEASED";
}

struct LeaseRecord {
  std::string lease_id;
  std::string job_id;
  int rank = 0;
  std::string token;   // 32 hex digits. Secret: never logged, never reported.
  std::string device;  // UUID, or "host:<node>".
  Tier tier = Tier::kPeer;
  Bytes bytes = 0;
  LeaseState state = LeaseState::kPrepared;
  std::string release_reason;  // With kReleased; one of a bounded set.
  ProcessIdentity holder;      // The process that has it mapped; pid 0: none yet.
  // With kRevoking: how long the holder has, from the revocation or from the agent's restart.
  absl::Duration revoke_grace = absl::InfiniteDuration();
};

struct DeviceUsage {
  std::string device;
  Bytes total_bytes = 0;
  Bytes reserve_bytes = 0;
  Bytes lent_bytes = 0;
  Bytes occupied_bytes = 0;  // In use beside leases, by whatever process.
  Bytes largest_free = 0;    // One lease of this size would be granted.
  bool awaiting_workers = false;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_LEASE_H_
