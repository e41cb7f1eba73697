#include "client/cpp/retry.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace hyperframes {
namespace {

// A world in which sleeping only moves the clock.
class RetryTest : public ::testing::Test {
 protected:
  RetryEnvironment Environment() {
    RetryEnvironment environment;
    environment.clock = &clock_;
    environment.seed = 7;
    environment.sleep = [this](absl::Duration wait) {
      sleeps_.push_back(wait);
      clock_.Advance(wait);
    };
    return environment;
  }

  // Pops a script of statuses; past its end everything is OK.
  Attempt Scripted() {
    return [this](absl::Duration timeout) {
      timeouts_.push_back(timeout);
      if (script_.empty()) return absl::OkStatus();
      absl::Status status = script_.front();
      script_.pop_front();
      return status;
    };
  }

  FakeClock clock_;
  std::deque<absl::Status> script_;
  std::vector<absl::Duration> sleeps_;
  std::vector<absl::Duration> timeouts_;
};

TEST_F(RetryTest, TriesAgainWhileTheServerIsUnavailable) {
  script_ = {absl::UnavailableError("1"), absl::UnavailableError("2")};
  EXPECT_TRUE(CallWithRetries({}, Environment(), true, absl::Seconds(10), Scripted()).ok());
  EXPECT_EQ(timeouts_.size(), 3u);
  EXPECT_EQ(sleeps_.size(), 2u);
}

TEST_F(RetryTest, OtherErrorsAreAnswersAndAreNotRetried) {
  script_ = {absl::NotFoundError("no")};
  EXPECT_TRUE(
      absl::IsNotFound(CallWithRetries({}, Environment(), true, absl::Seconds(10), Scripted())));
  EXPECT_EQ(timeouts_.size(), 1u);
}

TEST_F(RetryTest, CallsThatAreNotIdempotentAreMadeOnce) {
  script_ = {absl::UnavailableError("broken off")};
  EXPECT_TRUE(absl::IsUnavailable(
      CallWithRetries({}, Environment(), false, absl::Seconds(10), Scripted())));
  EXPECT_EQ(timeouts_.size(), 1u);
}

TEST_F(RetryTest, NoAttemptStartsAfterTheDeadline) {
  script_.assign(1000, absl::UnavailableError("down"));
  const absl::Time start = clock_.Now();
  EXPECT_TRUE(
      absl::IsUnavailable(CallWithRetries({}, Environment(), true, absl::Seconds(10), Scripted())));
  EXPECT_LT(clock_.Now() - start, absl::Seconds(10));
  EXPECT_GT(clock_.Now() - start, absl::Seconds(5)) << "gave up long before the deadline";
  for (absl::Duration timeout : timeouts_) EXPECT_GT(timeout, absl::ZeroDuration());
}

TEST_F(RetryTest, EveryAttemptGetsOnlyTheTimeThatIsLeft) {
  script_ = {absl::UnavailableError("1"), absl::UnavailableError("2")};
  ASSERT_TRUE(CallWithRetries({}, Environment(), true, absl::Seconds(10), Scripted()).ok());
  EXPECT_EQ(timeouts_[0], absl::Seconds(10));
  EXPECT_EQ(timeouts_[1], absl::Seconds(10) - sleeps_[0]);
  EXPECT_EQ(timeouts_[2], absl::Seconds(10) - sleeps_[0] - sleeps_[1]);
}

TEST_F(RetryTest, GivesUpEarlierWhenAskedTo) {
  script_.assign(1000, absl::UnavailableError("down"));
  RetryPolicy policy;
  policy.give_up_after = absl::Seconds(1);
  const absl::Time start = clock_.Now();
  EXPECT_TRUE(absl::IsUnavailable(
      CallWithRetries(policy, Environment(), true, absl::Seconds(60), Scripted())));
  EXPECT_LE(clock_.Now() - start, absl::Seconds(1));
}

}  // namespace
}  // namespace hyperframes
