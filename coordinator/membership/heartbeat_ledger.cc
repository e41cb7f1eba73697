#include "coordinator/membership/heartbeat_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace hyperframes {

absl::StatusOr<bool> HeartbeatLedger::Beat(const std::string& node, uint64_t incarnation,
                                           uint64_t sequence) {
  absl::Duration gap;
  {
    MutexLock lock(&mutex_);
    const auto found = entries_.find(node);
    if (found == entries_.end()) return false;
    Entry& entry = found->second;
    if (entry.incarnation != incarnation) {
      return absl::AbortedError(absl::StrCat("node '", node.substr(0, 64),
                                             "' has a newer incarnation ", entry.incarnation, "; ",
                                             incarnation, " is over"));
    }
    const absl::Time now = clock_->Now();
    gap = now - entry.last;
    entry.last = now;
    entry.sequence = std::max(entry.sequence, sequence);
  }
  if (on_gap_) on_gap_(gap);
  return true;
}

void HeartbeatLedger::Enter(const std::string& node, uint64_t incarnation) {
  MutexLock lock(&mutex_);
  entries_[node] = Entry{incarnation, 0, clock_->Now()};
}

absl::Duration HeartbeatLedger::Silence(const std::string& node) const {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(node);
  return found == entries_.end() ? absl::InfiniteDuration() : clock_->Now() - found->second.last;
}

bool HeartbeatLedger::ForgetIfSilent(const std::string& node, absl::Duration silence) {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(node);
  if (found == entries_.end()) return true;
  if (clock_->Now() - found->second.last < silence) return false;
  entries_.erase(found);
  return true;
}

}  // namespace hyperframes
