// Bytes that may be under way to or from one peer at a time, so that a peer which is slow fills its
// own share and nobody's memory.
#ifndef HYPERFRAMES_AGENT_TRANSFER_CREDITS_H_
#define HYPERFRAMES_AGENT_TRANSFER_CREDITS_H_

#include <functional>

#include "common/mutex.h"
#include "common/units.h"

namespace hyperframes {

// Shared by every lease on that peer. Thread-safe.
class Credits {
 public:
  explicit Credits(Bytes limit) : limit_(limit) {}

  // Blocks until `bytes` more may be under way; one piece always may, however large, once nothing
  // else is. False: `ended` (asked a few times a second) says that the caller gave up.
  bool Take(Bytes bytes, const std::function<bool()>& ended) HF_EXCLUDES(mutex_);
  void GiveBack(Bytes bytes) HF_EXCLUDES(mutex_);

  Bytes under_way() const HF_EXCLUDES(mutex_);
  Bytes most_under_way() const HF_EXCLUDES(mutex_);  // Since it was created.

 private:
  const Bytes limit_;
  mutable Mutex mutex_;
  CondVar changed_;
  Bytes under_way_ HF_GUARDED_BY(mutex_) = 0;
  Bytes most_under_way_ HF_GUARDED_BY(mutex_) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_CREDITS_H_
