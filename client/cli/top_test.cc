#include "client/cli/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/text.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

TEST(Bar, ShowsUsedThenLentThenFree) {
  EXPECT_EQ(Bar(50, 25, 100, 8), "[####==..]");
  EXPECT_EQ(Bar(0, 0, 100, 4), "[....]");
  EXPECT_EQ(Bar(100, 0, 100, 4), "[####]");
}

TEST(Bar, SmallAmountsAreSeenAndNothingRunsOver) {
  EXPECT_EQ(Bar(1, 1, 1000000, 4), "[#=..]");
  EXPECT_EQ(Bar(200, 200, 100, 4), "[####]");
  EXPECT_EQ(Bar(5, 5, 0, 4), "[....]");
  EXPECT_EQ(Bar(-5, 0, 100, 4), "[....]");
}

TEST(RenderTop, AnEmptyClusterSaysWhatToDo) {
  EXPECT_THAT(RenderTop("host:1", {}, {}, 80), HasSubstr("hfagent --coordinator host:1"));
}

TEST(FitTo, NothingWrapsAndNothingScrolls) {
  EXPECT_EQ(FitTo("abcdef\nxy\n", 4, 0), "abcd\nxy\n");
  EXPECT_EQ(FitTo("1\n2\n3\n4\n5\n", 0, 4), "1\n2\n... 3 more lines; `hfctl top --once` has all\n");
  EXPECT_EQ(FitTo("1\n2\n3\n", 80, 4), "1\n2\n3\n");
  EXPECT_EQ(FitTo("1\n2\n3\n", 0, 0), "1\n2\n3\n");
}

TEST(Text, AgesAreReadable) {
  EXPECT_EQ(AgeText(0.25), "0.2s");
  EXPECT_EQ(AgeText(59), "59s");
  EXPECT_EQ(AgeText(185), "3m05s");
  EXPECT_EQ(AgeText(7800), "2h10m");
  EXPECT_EQ(AgeText(4 * 86400 + 3 * 3600), "4d03h");
  EXPECT_EQ(AgeText(-1), "-");
}

TEST(Text, DurationsAreReadable) {
  EXPECT_EQ(SecondsText(0), "0");
  EXPECT_EQ(SecondsText(0.00045), "450us");
  EXPECT_EQ(SecondsText(0.00123), "1.23ms");
  EXPECT_EQ(SecondsText(2.1), "2.10s");
}

TEST(Text, StatesOfANewerCoordinatorDoNotBreakTheTable) {
  EXPECT_EQ(NodeStateText(static_cast<v1::NodeState>(99)), "UNKNOWN");
  EXPECT_EQ(NodeStateText(v1::NODE_STATE_OFFLINE), "OFFLINE");
}

}  // namespace
}  // namespace hyperframes
