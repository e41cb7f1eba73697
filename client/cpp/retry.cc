#include "client/cpp/retry.h"

#include <algorithm>

namespace hyperframes {

absl::Status CallWithRetries(const RetryPolicy& policy, const RetryEnvironment& environment,
                             bool idempotent, absl::Duration timeout, const Attempt& attempt) {
  const absl::Time start = environment.clock->Now();
  const absl::Time deadline = start + timeout;
  const absl::Time last_start = std::min(deadline, start + policy.give_up_after);
  Backoff backoff(policy, environment.seed);
  while (true) {
    absl::Status status = attempt(deadline - environment.clock->Now());
    if (!absl::IsUnavailable(status) || !idempotent) return status;
    const absl::Duration wait = backoff.Next();
    if (environment.clock->Now() + wait >= last_start) return status;
    environment.sleep(wait);
  }
}

}  // namespace hyperframes
