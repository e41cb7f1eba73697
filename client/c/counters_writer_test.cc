#include "client/c/counters_writer.h"

#include <gtest/gtest.h>

namespace hyperframes {
namespace {

constexpr int kPeer = static_cast<int>(Tier::kPeer);
constexpr int kOut = static_cast<int>(Direction::kOut);

EngineStats SomeStats() {
  EngineStats stats;
  stats.bytes_out[kPeer] = 100;
  stats.puts[kPeer] = 2;
  stats.copy_busy[kOut][kPeer] = absl::Microseconds(3);
  stats.exposed_wait = absl::Microseconds(5);
  stats.overflow_to_keep = 1;
  stats.stash_bytes = 64;
  stats.arena_used[kPeer] = 100;
  stats.arena_capacity[kPeer] = 1000;
  return stats;
}

TEST(CountersWriter, AFreshPageSaysWhatItIs) {
  const auto writer = CountersWriter::Create();
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ((*writer)->page().magic.load(), kCountersMagic);
  EXPECT_EQ((*writer)->page().version.load(), kCountersVersion);
  EXPECT_GE((*writer)->descriptor(), 0);
}

TEST(CountersWriter, CountersStayMonotonicAcrossEngines) {
  const auto writer = CountersWriter::Create();
  ASSERT_TRUE(writer.ok());
  const CountersPage& page = (*writer)->page();
  (*writer)->Publish(SomeStats());
  EXPECT_EQ(page.bytes_copied[kOut][kPeer].load(), 100);
  EXPECT_EQ(page.copies[kOut][kPeer].load(), 2);
  EXPECT_EQ(page.copy_busy_ns[kOut][kPeer].load(), 3000);
  (*writer)->Retire(SomeStats());
  EXPECT_EQ(page.bytes_copied[kOut][kPeer].load(), 100);
  (*writer)->Publish(SomeStats());  // The next engine, as far as the first one came.
  EXPECT_EQ(page.bytes_copied[kOut][kPeer].load(), 200);
  EXPECT_EQ(page.exposed_wait_ns.load(), 10000);
  EXPECT_EQ(page.overflow_to_keep.load(), 2);
}

TEST(CountersWriter, GaugesOfAClosedEngineAreZero) {
  const auto writer = CountersWriter::Create();
  ASSERT_TRUE(writer.ok());
  const CountersPage& page = (*writer)->page();
  (*writer)->Publish(SomeStats());
  EXPECT_EQ(page.stash_bytes.load(), 64);
  EXPECT_EQ(page.arena_capacity[kPeer].load(), 1000);
  (*writer)->Retire(SomeStats());
  EXPECT_EQ(page.stash_bytes.load(), 0);
  EXPECT_EQ(page.arena_capacity[kPeer].load(), 0);
  EXPECT_EQ(page.frame_bytes[kPeer].load(), 0);
}

TEST(CountersWriter, WhatTheFrontReportsIsShown) {
  const auto writer = CountersWriter::Create();
  ASSERT_TRUE(writer.ok());
  CountersWriter::FrontReport report;
  report.steps = 7;
  report.activation_peak_bytes = 1 << 20;
  (*writer)->Report(report);
  EXPECT_EQ((*writer)->page().steps.load(), 7);
  EXPECT_EQ((*writer)->page().activation_peak_bytes.load(), 1 << 20);
}

TEST(CountersWriter, MicroBatchesAreCountedByStageAndAStageOutOfRangeIsRefused) {
  const auto writer = CountersWriter::Create();
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE((*writer)->ReportMicroBatches(kMostStages - 1, 5, 600, 70).ok());
  EXPECT_EQ((*writer)->page().micro_batches[kMostStages - 1].load(), 5);
  EXPECT_EQ((*writer)->page().micro_batch_run_ns[kMostStages - 1].load(), 600);
  EXPECT_EQ((*writer)->page().micro_batch_wait_ns[kMostStages - 1].load(), 70);
  for (const int stage : {-1, kMostStages}) {
    EXPECT_EQ((*writer)->ReportMicroBatches(stage, 1, 1, 1).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace hyperframes
