// Time comes in through the constructor. Clock::Now is monotonic: it never jumps when somebody sets
// the wall clock, and it is never sent over the wire (durations are).
#ifndef HYPERFRAMES_COMMON_CLOCK_H_
#define HYPERFRAMES_COMMON_CLOCK_H_

#include "absl/time/time.h"
#include "common/mutex.h"

namespace hyperframes {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic. Only differences between two values mean anything. Thread-safe.
  virtual absl::Time Now() const = 0;
};

// CLOCK_MONOTONIC. Lives for ever.
const Clock* MonotonicClock();

// Stands still until told to advance. Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch()) : now_(start) {}
  absl::Time Now() const override;
  void Advance(absl::Duration by);

 private:
  mutable Mutex mutex_;
  absl::Time now_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_CLOCK_H_
