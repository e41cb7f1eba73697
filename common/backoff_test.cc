#include "common/backoff.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hyperframes {
namespace {

TEST(Backoff, GrowsToItsLimitWithinTheJitter) {
  const BackoffPolicy policy;
  Backoff backoff(policy, /*seed=*/3);
  absl::Duration nominal = policy.first_backoff;
  for (int i = 0; i < 20; ++i) {
    const absl::Duration wait = backoff.Next();
    EXPECT_LE(wait, nominal);
    EXPECT_GE(wait, nominal * (1.0 - policy.jitter) - absl::Nanoseconds(10));
    nominal = std::min(nominal * policy.multiplier, policy.longest_backoff);
  }
}

TEST(Backoff, TwoSeedsDoNotWaitInStep) {
  Backoff one({}, 1);
  Backoff two({}, 2);
  EXPECT_NE(one.Next(), two.Next());
}

TEST(Backoff, StartsAgainAfterASuccess) {
  const BackoffPolicy policy;
  Backoff backoff(policy, /*seed=*/3);
  for (int i = 0; i < 20; ++i) backoff.Next();
  EXPECT_GT(backoff.Next(), policy.first_backoff);
  backoff.Reset();
  EXPECT_LE(backoff.Next(), policy.first_backoff);
}

}  // namespace
}  // namespace hyperframes
