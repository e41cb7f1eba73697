#include "common/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

TEST(ParseBytes, ReadsBinaryAndDecimalUnitsInAnyCase) {
  EXPECT_EQ(*ParseBytes("60GiB"), 60 * kGiB);
  EXPECT_EQ(*ParseBytes("512mib"), 512 * kMiB);
  EXPECT_EQ(*ParseBytes("1.5GB"), 1500000000);
  EXPECT_EQ(*ParseBytes(" 4096 "), 4096);
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("9007199254740993"), 9007199254740993);  // 2^53 + 1 stays exact.
}

TEST(ParseBytes, NamesTheValueAndTheRemedy) {
  for (const char* bad : {"", "-1GiB", "1XB", "GiB", "1.5", "1.2.3GiB", "99999999TiB", "nan"}) {
    const auto parsed = ParseBytes(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(bad));
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("60GiB"));
  }
}

TEST(ParseBytes, BoundsWhatItRepeats) {
  const auto parsed = ParseBytes(std::string(100000, 'x'));
  ASSERT_FALSE(parsed.ok());
  EXPECT_LT(parsed.status().message().size(), 200u);
}

TEST(FormatBytes, PrintsExactUnitsAndTwoDigitsOtherwise) {
  EXPECT_EQ(FormatBytes(60 * kGiB), "60GiB");
  EXPECT_EQ(FormatBytes(kGiB + kGiB / 2), "1.50GiB");
  EXPECT_EQ(FormatBytes(512), "512B");
  EXPECT_EQ(FormatBytes(0), "0B");
}

TEST(ParseDuration, ReadsWhatPeopleWriteAndRefusesTheRest) {
  EXPECT_EQ(*ParseDuration("1m30s"), absl::Seconds(90));
  EXPECT_EQ(*ParseDuration("0"), absl::ZeroDuration());
  for (const char* bad : {"", "5", "-1s", "inf", "five"}) {
    EXPECT_EQ(ParseDuration(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace hyperframes
