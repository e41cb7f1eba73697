#include "agent/device/link_probe.h"

#include "agent/device/host/host_device.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

class LinkProbeTest : public testing::Test {
 protected:
  absl::StatusOr<LinkMeasurement> Probe(Bytes bandwidth, absl::Duration latency,
                                        Bytes memory_bytes = 16 * kMiB) {
    HostDeviceOptions options;
    options.uuid = "SIM-test-0";
    options.total_bytes = kGiB;
    options.peer_bandwidth = bandwidth;
    options.latency = latency;
    const auto device = HostDevice::Create(options).value();
    const auto stream = device->CreateStream(Direction::kOut, Tier::kPeer).value();
    const auto to = device->Allocate(memory_bytes).value();
    const auto from = device->Allocate(memory_bytes).value();
    const absl::Time started = MonotonicClock()->Now();
    auto measured = ProbeLink(stream.get(), *to, *from);
    took_ = MonotonicClock()->Now() - started;
    return measured;
  }

  absl::Duration took_;
};

TEST_F(LinkProbeTest, FindsTheSpeedAndLatencyOfAPacedPath) {
  const auto measured = Probe(/*bandwidth=*/200'000'000, absl::Milliseconds(2)).value();
  // Never faster than the path; slower only as far as a busy machine makes it.
  EXPECT_LT(measured.bytes_per_second, 210e6);
  EXPECT_GT(measured.bytes_per_second, 20e6);
  EXPECT_GE(measured.latency, absl::Microseconds(1900));
  EXPECT_GT(measured.copies, 2);
}

TEST_F(LinkProbeTest, TellsAFastPathFromASlowOne) {
  const auto slow = Probe(/*bandwidth=*/20'000'000, absl::ZeroDuration()).value();
  EXPECT_LT(slow.bytes_per_second, 21e6);
  EXPECT_LE(slow.largest_copy, 4 * kMiB) << "a slow path is probed with less";
  // A busy machine can make a fast path look slow for a quarter of a second.
  double fast = 0;
  for (int attempt = 0; attempt < 10 && fast <= 5 * slow.bytes_per_second; ++attempt) {
    fast = Probe(/*bandwidth=*/0, absl::ZeroDuration()).value().bytes_per_second;
  }
  EXPECT_GT(fast, 5 * slow.bytes_per_second);
}

TEST_F(LinkProbeTest, EndsInTimeOnASlowPath) {
  // At 1 MB/s the large copy alone would take 16 s.
  const auto measured = Probe(/*bandwidth=*/1'000'000, absl::ZeroDuration()).value();
  EXPECT_LT(measured.bytes_per_second, 1.1e6);
  EXPECT_LT(took_, absl::Seconds(3)) << "0.3 s on an idle machine";
}

TEST_F(LinkProbeTest, StaysInsideTheSmallerMemory) {
  EXPECT_EQ(Probe(0, absl::ZeroDuration(), 10000).value().largest_copy, 10000);
  EXPECT_EQ(Probe(0, absl::ZeroDuration(), 100).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace hyperframes
