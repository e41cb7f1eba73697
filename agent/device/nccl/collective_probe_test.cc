#include "agent/device/nccl/collective_probe.h"

#include "gtest/gtest.h"

namespace hyperframes {
namespace {

// By hand: 1 GB in 10 ms is 100 GB/s; 8 ranks reduce at 2 x 7/8 of what crosses a link.
TEST(BusBandwidth, IsTheOneOfNcclTests) {
  constexpr Bytes kGigabyte = 1000000000;
  const absl::Duration time = absl::Milliseconds(10);
  EXPECT_DOUBLE_EQ(BusBytesPerSecond(Collective::kAllReduce, 8, kGigabyte, time), 175e9);
  EXPECT_DOUBLE_EQ(BusBytesPerSecond(Collective::kAllReduce, 2, kGigabyte, time), 100e9);
  EXPECT_DOUBLE_EQ(BusBytesPerSecond(Collective::kSendReceive, 8, kGigabyte, time), 100e9);
  EXPECT_EQ(BusBytesPerSecond(Collective::kAllReduce, 8, kGigabyte, absl::ZeroDuration()), 0);
}

}  // namespace
}  // namespace hyperframes
