// When each node was last heard. It has a lock of its own, held for a map look-up and never while
// another lock is taken, so that no busy registry, store or RPC can make a living node look dead.
#ifndef HYPERFRAMES_COORDINATOR_MEMBERSHIP_HEARTBEAT_LEDGER_H_
#define HYPERFRAMES_COORDINATOR_MEMBERSHIP_HEARTBEAT_LEDGER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace hyperframes {

class HeartbeatLedger {
 public:
  // `clock` must outlive the ledger. `on_gap`, which may be empty, is told the time between two
  // beats of a node, with no lock held.
  explicit HeartbeatLedger(const Clock* clock, std::function<void(absl::Duration)> on_gap = nullptr)
      : clock_(clock), on_gap_(std::move(on_gap)) {}

  // Counts a beat. False: the node is not known (or its silence was already declared) and should
  // register again. Aborted: the node has a newer incarnation; the message names it. A repeated or
  // overtaken sequence number is accepted and counts as a sign of life. Thread-safe, like all here.
  absl::StatusOr<bool> Beat(const std::string& node, uint64_t incarnation, uint64_t sequence);

  // A registration is a beat, and from now on the only incarnation that may beat.
  void Enter(const std::string& node, uint64_t incarnation);

  // Time since the last beat; InfiniteDuration for an unknown node.
  absl::Duration Silence(const std::string& node) const;

  // Forgets the node if it is still silent for at least `silence`, in one step, so that a beat
  // that arrives meanwhile wins. True when it was forgotten.
  bool ForgetIfSilent(const std::string& node, absl::Duration silence);

 private:
  struct Entry {
    uint64_t incarnation = 0;
    uint64_t sequence = 0;
    absl::Time last;
  };
  const Clock* const clock_;
  const std::function<void(absl::Duration)> on_gap_;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_MEMBERSHIP_HEARTBEAT_LEDGER_H_
