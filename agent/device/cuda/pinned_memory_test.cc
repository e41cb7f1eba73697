// Pinned host leases on a real GPU. Skipped, and counted as skipped, where there is none.
#include "agent/device/cuda/pinned_memory.h"

#include <fcntl.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "agent/device/conformance_backends.h"
#include "agent/device/host/host_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

class PinnedMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = ConformanceBackend::Open("cuda");
    if (!opened.ok()) GTEST_SKIP() << opened.status();
    backend_ = *std::move(opened);
    // Makes the context: no part of what is timed below.
    ASSERT_NE(backend_->CreateStream(Direction::kOut, Tier::kHost), nullptr);
  }

  // As a worker maps a lease that its agent made.
  std::unique_ptr<Memory> Map(const Memory& lent) {
    const int descriptor = fcntl(lent.descriptor(), F_DUPFD_CLOEXEC, 0);
    return backend_->compute()->Map(descriptor, lent.bytes()).value();
  }
  static std::unique_ptr<Memory> Lend(Bytes bytes) {
    return HostMemory::Create("test", bytes, /*budget=*/nullptr).value();
  }

  std::unique_ptr<ConformanceBackend> backend_;
};

TEST_F(PinnedMemoryTest, IsPinnedInTheBackgroundWhileItsOwnerGoesOn) {
  constexpr Bytes kLease = 4 * kGiB;
  const auto lent = Lend(kLease);
  const absl::Time started = absl::Now();
  const auto pinned = Map(*lent);
  const absl::Duration opened_after = absl::Now() - started;
  EXPECT_LT(opened_after, absl::Milliseconds(100));
  EXPECT_LT(pinned->usable_share(), 1.0);
  ASSERT_EQ(pinned->WaitUntilUsable(), absl::OkStatus());
  EXPECT_EQ(pinned->usable_share(), 1.0);
  printf("pinned %.2f s per GiB\n", absl::ToDoubleSeconds(absl::Now() - started) / 4);
}

TEST_F(PinnedMemoryTest, LeavesWhatAnAdoptedLeaseHolds) {
  constexpr Bytes kLease = 3 * PinnedMemory::kPiece + 4096;
  const auto lent = Lend(kLease);
  std::memset(lent->data(), 'a', kLease);
  const auto pinned = Map(*lent);
  ASSERT_EQ(pinned->WaitUntilUsable(), absl::OkStatus());
  const auto stream = backend_->CreateStream(Direction::kOut, Tier::kHost);
  const std::vector<char> seen = backend_->Read(stream.get(), pinned->data(), kLease);
  EXPECT_EQ(seen, std::vector<char>(kLease, 'a'));
}

TEST_F(PinnedMemoryTest, IsGivenUpAtOnceWhenNobodyWantsItAnyMore) {
  const auto lent = Lend(16 * kGiB);
  const absl::Time started = absl::Now();
  Map(*lent).reset();
  EXPECT_LT(absl::Now() - started, absl::Seconds(2));
}

TEST_F(PinnedMemoryTest, CanBePinnedAgainAfterItWasLetGo) {
  const auto lent = Lend(64 * kMiB);
  for (int i = 0; i < 3; ++i) {
    const auto pinned = Map(*lent);
    EXPECT_EQ(pinned->WaitUntilUsable(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace hyperframes
