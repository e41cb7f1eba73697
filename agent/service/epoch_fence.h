// Keeps a coordinator that has lost its leadership from changing anything on this node.
#ifndef HYPERFRAMES_AGENT_SERVICE_EPOCH_FENCE_H_
#define HYPERFRAMES_AGENT_SERVICE_EPOCH_FENCE_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/mutex.h"

namespace hyperframes {

// Thread-safe.
class EpochFence {
 public:
  // Remembers `epoch` when it is the newest seen. Aborted: it is older than that; the caller must
  // change nothing.
  absl::Status Pass(int64_t epoch) HF_EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (epoch < newest_) {
      return absl::AbortedError("coordinator epoch " + std::to_string(epoch) +
                                " is over: this agent has seen " + std::to_string(newest_) +
                                ", so another coordinator leads now");
    }
    newest_ = epoch;
    return absl::OkStatus();
  }
  int64_t newest() const HF_EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    return newest_;
  }

 private:
  mutable Mutex mutex_;
  int64_t newest_ HF_GUARDED_BY(mutex_) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_EPOCH_FENCE_H_
