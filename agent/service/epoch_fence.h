// Keeps a coordinator that has lost its leadership from changing anything on this node.
#ifndef HYPERFRAMES_AGENT_SERVICE_EPOCH_FENCE_H_
#define HYPERFRAMES_AGENT_SERVICE_EPOCH_FENCE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/mutex.h"

namespace hyperframes {

// Thread-safe.
class EpochFence {
 public:
  // Remembers in memory alone until Open.
  EpochFence() = default;

  // Goes on from the epoch in the file `path`, if there is one, and keeps it there from now on: a
  // restart of the agent must not let an old coordinator in. DataLoss: the file is unreadable.
  // Unavailable: the file system refuses. Both name the path and the remedy.
  absl::Status Open(const std::string& path) HF_EXCLUDES(mutex_);

  // Remembers `epoch` when it is the newest seen. Aborted: it is older than that; the caller must
  // change nothing. Unavailable: it is newer and cannot be written down; ask again.
  absl::Status Pass(int64_t epoch) HF_EXCLUDES(mutex_);
  int64_t newest() const HF_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::string path_ HF_GUARDED_BY(mutex_);
  int64_t newest_ HF_GUARDED_BY(mutex_) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_EPOCH_FENCE_H_
