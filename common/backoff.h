// How long to wait before the next attempt: exponential with jitter. Randomness comes in as a seed,
// and nothing here sleeps.
#ifndef HYPERFRAMES_COMMON_BACKOFF_H_
#define HYPERFRAMES_COMMON_BACKOFF_H_

#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace hyperframes {

struct BackoffPolicy {
  absl::Duration first_backoff = absl::Milliseconds(50);
  absl::Duration longest_backoff = absl::Seconds(2);
  double multiplier = 2.0;
  // Each backoff is drawn from [1 - jitter, 1] times its nominal length: a thousand workers that
  // lost one coordinator do not come back in the same millisecond.
  double jitter = 0.5;
};

// Draws successive backoffs. Not thread-safe: one per call or loop.
class Backoff {
 public:
  Backoff(const BackoffPolicy& policy, uint64_t seed);
  // The next wait, never longer than policy.longest_backoff.
  absl::Duration Next();
  // An attempt succeeded: the next wait is a first one again.
  void Reset();

 private:
  const BackoffPolicy policy_;
  absl::Duration nominal_;
  std::mt19937_64 random_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_BACKOFF_H_
