#include "common/clock.h"

#include <time.h>

namespace hyperframes {
namespace {

class MonotonicClockImpl final : public Clock {
 public:
  absl::Time Now() const override {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::UnixEpoch() + absl::DurationFromTimespec(now);
  }
};

}  // namespace

const Clock* MonotonicClock() {
  static const auto* const clock = new MonotonicClockImpl();
  return clock;
}

absl::Time FakeClock::Now() const {
  MutexLock lock(&mutex_);
  return now_;
}

void FakeClock::Advance(absl::Duration by) {
  MutexLock lock(&mutex_);
  now_ += by;
}

}  // namespace hyperframes
