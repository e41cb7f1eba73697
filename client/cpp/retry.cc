#include "client/cpp/retry.h"

#include <algorithm>

namespace hyperframes {

Backoff::Backoff(const RetryPolicy& policy, uint64_t seed)
    : policy_(policy), nominal_(policy.first_backoff), random_(seed) {}

absl::Duration Backoff::Next() {
  const double unit = std::uniform_real_distribution<double>(0.0, 1.0)(random_);
  const absl::Duration drawn = nominal_ * (1.0 - policy_.jitter * unit);
  nominal_ = std::min(nominal_ * policy_.multiplier, policy_.longest_backoff);
  return std::min(drawn, policy_.longest_backoff);
}

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
