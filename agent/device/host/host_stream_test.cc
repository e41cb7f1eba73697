#include "agent/device/host/host_stream.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::Each;

TEST(HostStream, CopiesAndFillsInTheOrderOfTheQueue) {
  HostStream stream({});
  std::vector<char> a(1000, 'a');
  std::vector<char> b(1000, 'b');
  std::vector<char> c(1000, 'c');
  ASSERT_TRUE(stream.Copy(b.data(), a.data(), 1000).ok());
  ASSERT_TRUE(stream.Copy(c.data(), b.data(), 1000).ok());
  ASSERT_TRUE(stream.Fill(a.data(), 'z', 1000).ok());
  stream.Record()->Synchronize();
  EXPECT_THAT(c, Each('a'));
  EXPECT_THAT(a, Each('z'));
}

TEST(HostStream, StartsLaterWorkOnlyAfterTheEventItWaitsFor) {
  HostStream stream({});
  auto gate = std::make_shared<HostEvent>();
  char source = 'x';
  char target = '-';
  ASSERT_TRUE(stream.WaitFor(gate).ok());
  ASSERT_TRUE(stream.Copy(&target, &source, 1).ok());
  const auto done = stream.Record();
  EXPECT_FALSE(done->Done());
  source = 'y';  // Safe to write: the copy cannot have started.
  gate->Set();
  done->Synchronize();
  EXPECT_EQ(target, 'y');
}

TEST(HostStream, OrdersTwoStreamsByAnEvent) {
  HostStream first({});
  HostStream second({});
  auto gate = std::make_shared<HostEvent>();
  char a = 'a';
  char b = '-';
  char c = '-';
  ASSERT_TRUE(first.WaitFor(gate).ok());
  ASSERT_TRUE(first.Copy(&b, &a, 1).ok());
  ASSERT_TRUE(second.WaitFor(first.Record()).ok());
  ASSERT_TRUE(second.Copy(&c, &b, 1).ok());
  const auto done = second.Record();
  gate->Set();
  done->Synchronize();
  EXPECT_EQ(c, 'a');
}

TEST(HostStream, RecordsADoneEventWhenItIsIdle) {
  HostStream stream({});
  EXPECT_TRUE(stream.Record()->Done());
}

TEST(HostStream, BlocksItsProducerWhenTheQueueIsFull) {
  constexpr int kCapacity = 4;
  HostStream stream({}, kCapacity);
  auto gate = std::make_shared<HostEvent>();
  char from = 'x';
  char to = '-';
  std::atomic<int> queued{0};
  std::thread producer([&] {
    EXPECT_TRUE(stream.WaitFor(gate).ok());
    for (int i = 0; i < 3 * kCapacity; ++i) {
      EXPECT_TRUE(stream.Copy(&to, &from, 1).ok());
      ++queued;
    }
  });
  // The lane holds the wait, the queue as many copies as it can; the next one finds no room.
  while (queued < kCapacity) std::this_thread::yield();
  EXPECT_LE(queued, kCapacity);
  gate->Set();
  producer.join();
  EXPECT_EQ(queued, 3 * kCapacity);
}

TEST(HostStream, FinishesItsQueueBeforeItGoes) {
  std::vector<char> from(100, 'q');
  std::vector<char> to(100, '-');
  auto gate = std::make_shared<HostEvent>();
  std::thread opener;
  {
    HostStream stream({});
    ASSERT_TRUE(stream.WaitFor(gate).ok());
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(stream.Copy(&to[i], &from[i], 1).ok());
    opener = std::thread([&gate] { gate->Set(); });
  }
  opener.join();
  EXPECT_THAT(to, Each('q'));
}

TEST(HostStream, TakesAsLongAsLatencyAndBandwidthSay) {
  HostStream stream({/*bandwidth=*/100000000, /*latency=*/absl::Milliseconds(1)});
  std::vector<char> from(1000000, 'q');
  std::vector<char> to(1000000);
  const absl::Time started = MonotonicClock()->Now();
  ASSERT_TRUE(stream.Copy(to.data(), from.data(), from.size()).ok());
  stream.Record()->Synchronize();
  EXPECT_GE(MonotonicClock()->Now() - started, absl::Milliseconds(11));
  EXPECT_GE(stream.copy_busy(), absl::Milliseconds(11));
}

// A thread that sleeps wakes up late. Were each copy's end counted from that moment, two hundred
// copies would be late two hundred times.
TEST(HostStream, DoesNotAddUpTheTimesOfWakingUpLate) {
  constexpr int kCopies = 200;
  const absl::Duration each = absl::Microseconds(200);
  absl::Duration best = absl::InfiniteDuration();
  char from = 'x';
  char to = '-';
  for (int attempt = 0; attempt < 20 && best > 1.1 * kCopies * each; ++attempt) {
    HostStream stream({/*bandwidth=*/0, /*latency=*/each});
    const absl::Time started = MonotonicClock()->Now();
    for (int i = 0; i < kCopies; ++i) ASSERT_TRUE(stream.Copy(&to, &from, 1).ok());
    stream.Record()->Synchronize();
    const absl::Duration taken = MonotonicClock()->Now() - started;
    EXPECT_GE(taken, kCopies * each);
    best = std::min(best, taken);
  }
  EXPECT_LE(best, 1.1 * kCopies * each);
}

TEST(HostStream, SleepsRatherThanSpinsWhileItKeepsToItsSpeed) {
  const auto cpu_time = [] {
    timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return absl::DurationFromTimespec(used);
  };
  HostStream stream({});
  const absl::Duration before = cpu_time();
  ASSERT_TRUE(stream.Delay(absl::Milliseconds(100)).ok());
  stream.Record()->Synchronize();
  EXPECT_LT(cpu_time() - before, absl::Milliseconds(50));
}

TEST(HostStream, RefusesWhatItCannotDo) {
  HostStream stream({});
  char byte = 0;
  EXPECT_EQ(stream.Copy(&byte, nullptr, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Copy(&byte, &byte, -1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Fill(nullptr, 0, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.WaitFor(nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Delay(absl::Seconds(-1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Delay(absl::InfiniteDuration()).code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostStream, TakesWorkFromSeveralThreads) {
  constexpr size_t kThreads = 4;
  constexpr size_t kCopies = 2000;
  std::vector<char> from(kThreads * kCopies, 'q');
  std::vector<char> to(kThreads * kCopies, '-');
  {
    HostStream stream({}, /*queue_capacity=*/16);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t * kCopies; i < (t + 1) * kCopies; ++i) {
          EXPECT_TRUE(stream.Copy(&to[i], &from[i], 1).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_THAT(to, Each('q'));
}

}  // namespace
}  // namespace hyperframes
