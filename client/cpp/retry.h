// The one retry policy: exponential backoff with jitter, bounded by the call's deadline. Time,
// sleep and randomness come in from outside, so that tests neither sleep nor flake.
#ifndef HYPERFRAMES_CLIENT_CPP_RETRY_H_
#define HYPERFRAMES_CLIENT_CPP_RETRY_H_

#include <cstdint>
#include <functional>
#include <random>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace hyperframes {

struct RetryPolicy {
  absl::Duration first_backoff = absl::Milliseconds(50);
  absl::Duration longest_backoff = absl::Seconds(2);
  double multiplier = 2.0;
  // Each backoff is drawn from [1 - jitter, 1] times its nominal length: a thousand workers that
  // lost one coordinator do not come back in the same millisecond.
  double jitter = 0.5;
  // No new attempt starts this long after the first one, even when the deadline is further away.
  // People at a prompt want to hear soon that nobody is there; a worker waits for the deadline.
  absl::Duration give_up_after = absl::InfiniteDuration();
};

// Draws successive backoffs. Not thread-safe: one per call.
class Backoff {
 public:
  Backoff(const RetryPolicy& policy, uint64_t seed);
  // The next wait, never longer than policy.longest_backoff.
  absl::Duration Next();

 private:
  const RetryPolicy policy_;
  absl::Duration nominal_;
  std::mt19937_64 random_;
};

// What a call needs from the world.
struct RetryEnvironment {
  const Clock* clock = MonotonicClock();
  std::function<void(absl::Duration)> sleep;  // Must be set.
  uint64_t seed = 0;
};

// One attempt, given the time that it may take.
using Attempt = std::function<absl::Status(absl::Duration timeout)>;

// Runs `attempt` until it answers with something else than UNAVAILABLE, or until the next one would
// start after `timeout` or after policy.give_up_after; then the last status is returned. With
// `idempotent` false there is exactly one attempt: whether the server carried out a call that broke
// off cannot be known.
absl::Status CallWithRetries(const RetryPolicy& policy, const RetryEnvironment& environment,
                             bool idempotent, absl::Duration timeout, const Attempt& attempt);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CPP_RETRY_H_
