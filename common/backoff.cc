#include "common/backoff.h"

#include <algorithm>

namespace hyperframes {

Backoff::Backoff(const BackoffPolicy& policy, uint64_t seed)
    : policy_(policy), nominal_(policy.first_backoff), random_(seed) {}

absl::Duration Backoff::Next() {
  const double unit = std::uniform_real_distribution<double>(0.0, 1.0)(random_);
  const absl::Duration drawn = nominal_ * (1.0 - policy_.jitter * unit);
  nominal_ = std::min(nominal_ * policy_.multiplier, policy_.longest_backoff);
  return std::min(drawn, policy_.longest_backoff);
}

void Backoff::Reset() { nominal_ = policy_.first_backoff; }

}  // namespace hyperframes
