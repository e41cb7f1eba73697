// The one retry policy of calls: backoff, bounded by the call's deadline. Time, sleep and
// randomness come in from outside, so that tests neither sleep nor flake.
#ifndef HYPERFRAMES_CLIENT_CPP_RETRY_H_
#define HYPERFRAMES_CLIENT_CPP_RETRY_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/backoff.h"
#include "common/clock.h"

namespace hyperframes {

struct RetryPolicy : BackoffPolicy {
  // No new attempt starts this long after the first one, even when the deadline is further away.
  // People at a prompt want to hear soon that nobody is there; a worker waits for the deadline.
  absl::Duration give_up_after = absl::InfiniteDuration();
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
