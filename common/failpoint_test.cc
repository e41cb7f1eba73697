#include "common/failpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

namespace hyperframes {
namespace {

// The environment is read when a process starts, so each death test runs this program anew.
class FailpointDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
  void TearDown() override { unsetenv("HYPERFRAMES_FAILPOINT"); }
};

void PassBy(const char* name, int times) {
  for (int i = 0; i < times; ++i) Failpoint(name);
}

TEST_F(FailpointDeathTest, KillsTheProcessAtThePlaceThatIsNamed) {
  setenv("HYPERFRAMES_FAILPOINT", "here", 1);
  EXPECT_EXIT(PassBy("here", 1), testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FailpointDeathTest, PassesByAllOtherPlaces) {
  setenv("HYPERFRAMES_FAILPOINT", "here", 1);
  EXPECT_EXIT(
      {
        PassBy("there", 3);
        _exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST_F(FailpointDeathTest, KillsAtTheNthPassAndNotBefore) {
  setenv("HYPERFRAMES_FAILPOINT", "here:3", 1);
  EXPECT_EXIT(
      {
        PassBy("here", 2);
        _exit(7);
      },
      testing::ExitedWithCode(7), "");
  EXPECT_EXIT(PassBy("here", 3), testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FailpointDeathTest, RefusesAValueThatNamesNoPass) {
  for (const char* wrong : {"", ":2", "here:", "here:0", "here:-1", "here:x"}) {
    EXPECT_NE(FailpointProblem(wrong), "") << wrong;
  }
  EXPECT_EQ(FailpointProblem("here:12"), "");
  setenv("HYPERFRAMES_FAILPOINT", "here:x", 1);
  EXPECT_EXIT(PassBy("there", 1), testing::KilledBySignal(SIGABRT), "name:N");
}

TEST(Failpoint, IsNothingWhereTheEnvironmentNamesNone) {
  unsetenv("HYPERFRAMES_FAILPOINT");
  PassBy("here", 1000);
}

}  // namespace
}  // namespace hyperframes
