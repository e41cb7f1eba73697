#include "client/doctor/collective_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/doctor/collective_lines.h"
#include "client/doctor/judgement.h"

namespace hyperframes {
namespace doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kMillisecond = absl::Milliseconds(1);

Facts ThreeGpus(const std::string& link = "nvlink") {
  Facts facts;
  facts.driver_tried = true;
  facts.host.shared_memory_bytes = 8 * kGiB;
  for (const char* uuid : {"GPU-a", "GPU-b", "GPU-c"}) {
    facts.gpus.emplace_back();
    facts.gpus.back().uuid = uuid;
    facts.gpus.back().nvlinks = 18;
    facts.gpus.back().nvlink_version = 6;
  }
  PathFacts peer;
  peer.from = "GPU-a";
  peer.to = "GPU-b";
  peer.link = link;
  peer.bytes_per_second = 400e9;
  facts.paths.push_back(peer);
  return facts;
}

PathFacts Measured(PathKind kind, double bytes_per_second) {
  PathFacts path;
  path.kind = kind;
  path.bytes_per_second = bytes_per_second;
  path.latency = absl::Microseconds(20);
  return path;
}

// Both collectives, as `lines`, `ended` and `time` tell of them.
std::vector<PathFacts> Added(const std::string& lines, const absl::Status& ended,
                             absl::Duration time = absl::Seconds(2)) {
  Facts facts = ThreeGpus();
  AddCollectives(lines, ended, time, &facts);
  return {facts.paths.begin() + 1, facts.paths.end()};
}

TEST(Collectives, AreMeasuredBetweenTheFirstAndTheLastGpu) {
  Facts facts = ThreeGpus();
  AddCollectives(MeasuredLine(Measured(PathKind::kAllReduce, 300e9)) +
                     MeasuredLine(Measured(PathKind::kSendReceive, 20e9)),
                 absl::OkStatus(), absl::Seconds(1), &facts);
  ASSERT_THAT(facts.paths, SizeIs(3));
  EXPECT_EQ(PathText(facts.paths[1]), "all-reduce GPU-a -> GPU-c");
  EXPECT_EQ(facts.paths[1].link, "nvlink");
  EXPECT_EQ(facts.paths[1].bytes_per_second, 300e9);
  EXPECT_EQ(facts.paths[1].latency, absl::Microseconds(20));
  const Diagnosis diagnosis = Judge(facts);
  ASSERT_THAT(diagnosis.findings, SizeIs(1)) << "300 of 450 GB/s are well, 20 are not";
  EXPECT_EQ(diagnosis.findings[0].severity, Severity::kBroken);
  EXPECT_THAT(Sentence(diagnosis.findings[0]), HasSubstr("send/recv GPU-a -> GPU-c: 20.0GB/s"));
}

TEST(Collectives, WhereOnePairHasNoNvlinkThePromiseIsPcies) {
  Facts facts = ThreeGpus("pcie");
  AddCollectives("", absl::OkStatus(), absl::Seconds(1), &facts);
  EXPECT_EQ(facts.paths[1].link, "pcie");
}

TEST(Collectives, OneGpuHasNone) {
  Facts facts = ThreeGpus();
  facts.gpus.resize(1);
  facts.paths.clear();
  AddCollectives("", absl::OkStatus(), absl::Seconds(1), &facts);
  EXPECT_THAT(facts.paths, IsEmpty());
  const Diagnosis diagnosis = Judge(facts);
  ASSERT_THAT(diagnosis.findings, SizeIs(1));
  EXPECT_EQ(diagnosis.findings[0].severity, Severity::kNote);
  EXPECT_THAT(Sentence(diagnosis.findings[0]), HasSubstr("not applicable"));
}

TEST(Collectives, AHiddenGpuTakesNoPart) {
  Facts facts = ThreeGpus();
  facts.gpus[2].visible = false;
  AddCollectives("", absl::OkStatus(), absl::Seconds(1), &facts);
  EXPECT_EQ(facts.paths[1].to, "GPU-b");
}

TEST(Collectives, WhatTakesLongerThanItEverShouldHangs) {
  const std::string lines =
      DoingLine("running a first all-reduce", 1500 * kMillisecond, 1000 * kMillisecond);
  const absl::Status killed = absl::CancelledError("no longer wanted");
  for (const PathFacts& path : Added(lines, killed, 2600 * kMillisecond)) {
    EXPECT_EQ(path.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(path.untried);
    EXPECT_THAT(std::string(path.status.message()),
                HasSubstr("hangs while running a first all-reduce: it was ended after 1.6s"));
  }
}

TEST(Collectives, WhatWasOnlySlowToStartWasNotMeasuredAndIsNoFault) {
  Facts facts = ThreeGpus();
  const std::string lines = DoingLine("connecting 3 GPUs", absl::Seconds(15), kMillisecond);
  AddCollectives(lines, absl::CancelledError("no longer wanted"), absl::Seconds(3), &facts);
  const Diagnosis diagnosis = Judge(facts);
  EXPECT_TRUE(diagnosis.healthy);
  ASSERT_THAT(diagnosis.findings, SizeIs(2));
  EXPECT_EQ(diagnosis.findings[0].severity, Severity::kWarning);
  EXPECT_THAT(Sentence(diagnosis.findings[0]),
              HasSubstr("still connecting 3 GPUs when time was up; give it more time (--timeout"));
}

TEST(Collectives, OneIsKeptWhenTheOtherHangs) {
  const std::string lines = MeasuredLine(Measured(PathKind::kAllReduce, 1e9)) +
                            DoingLine("running send/recvs", kMillisecond, kMillisecond);
  const auto added = Added(lines, absl::CancelledError("no longer wanted"));
  EXPECT_TRUE(added[0].status.ok());
  EXPECT_EQ(added[1].status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Collectives, AProcessThatNcclEndsSaysInWhat) {
  const std::string lines = DoingLine("connecting 3 GPUs", absl::Seconds(15), kMillisecond);
  const absl::Status died = absl::InternalError("hfctl: it was ended by signal 11");
  const auto added = Added(lines, died);
  EXPECT_THAT(std::string(added[0].status.message()), HasSubstr("connecting 3 GPUs"));
  EXPECT_THAT(std::string(added[0].status.message()), HasSubstr("signal 11"));
}

TEST(Collectives, AnErrorOfNcclIsAFaultAndAMissingNcclIsNone) {
  const absl::Status error = absl::InternalError("ncclCommInitRankConfig failed: it did");
  const std::string connecting = DoingLine("connecting 3 GPUs", absl::Seconds(15), kMillisecond);
  EXPECT_FALSE(Added(connecting + FailedLine(error), absl::OkStatus())[0].untried);
  const std::string opening = DoingLine("opening NCCL", absl::Seconds(15), kMillisecond);
  const absl::Status missing = absl::NotFoundError("NCCL is not to be found");
  EXPECT_TRUE(Added(opening + FailedLine(missing), absl::OkStatus())[0].untried);
}

TEST(Collectives, FullGpusWereNotMeasured) {
  const std::string lines = FailedLine(absl::OutOfRangeError("a GPU is too full"));
  EXPECT_TRUE(Added(lines, absl::OkStatus())[0].out_of_time);
}

TEST(Collectives, WhatCannotBeReadIsLeftOut) {
  const std::string good = MeasuredLine(Measured(PathKind::kAllReduce, 1e9));
  for (const std::string& noise :
       {std::string("NCCL INFO hello\n"), std::string("{\"kind\": 7}\n"), std::string("[1]\n"),
        std::string("{\"doing\":\"x\",\"longest_s\":\"much\"}\n"), good.substr(0, 20)}) {
    const CollectiveAnswer answer = ReadCollectiveLines(good + noise);
    ASSERT_THAT(answer.measured, SizeIs(1)) << noise;
    EXPECT_EQ(answer.measured[0].bytes_per_second, 1e9);
  }
}

// A failed all-reduce among the three GPUs.
Finding Failed(Facts facts, const absl::Status& status) {
  AddCollectives(
      DoingLine("connecting 3 GPUs", absl::Seconds(15), kMillisecond) + FailedLine(status),
      absl::OkStatus(), absl::Seconds(1), &facts);
  for (const Finding& finding : Judge(facts).findings) {
    if (finding.path == 1) return finding;
  }
  return {};
}

TEST(CollectiveCauses, AreNamedWhereTheFactsShowThem) {
  const absl::Status failed = absl::InternalError("ncclAllReduce failed: unhandled system error");
  EXPECT_THAT(Failed(ThreeGpus(), failed).cause, HasSubstr("unhandled system error"));
  EXPECT_THAT(Failed(ThreeGpus(), failed).remedy, HasSubstr("NCCL_DEBUG=INFO"));

  Facts refused = ThreeGpus();
  refused.peer_access.push_back({"GPU-b", "GPU-c", "the chipset does not allow it"});
  EXPECT_THAT(Failed(refused, failed).cause,
              HasSubstr("unhandled system error, perhaps because peer access is off"));

  Facts separated = ThreeGpus();
  separated.host.own_ipc_namespace = true;
  EXPECT_THAT(Failed(separated, failed).remedy, HasSubstr("--ipc=host"));

  Facts small = ThreeGpus();
  small.host.shared_memory_bytes = 64 * kMiB;
  EXPECT_THAT(Failed(small, failed).cause, HasSubstr("/dev/shm holds only 64MiB"));

  Facts limited = ThreeGpus();
  limited.host.memlock = 64 * kKiB;
  EXPECT_THAT(Failed(limited, failed).remedy, HasSubstr("ulimit -l"));

  Facts mixed = ThreeGpus();
  mixed.gpus[1].name = "another";
  EXPECT_THAT(Failed(mixed, failed).cause, HasSubstr("different models"));

  Facts partitioned = ThreeGpus();
  partitioned.gpus[1].mig = true;
  EXPECT_THAT(Failed(partitioned, failed).cause, HasSubstr("GPU-b is partitioned"));
}

TEST(CollectiveCauses, ASourceThatCannotStartItsProgramSaysSo) {
  Facts facts = ThreeGpus();
  const absl::Time now = MonotonicClock()->Now();
  CollectiveSource source({"/nowhere/hfctl"}, MonotonicClock());
  source.Collect(now + absl::Seconds(30), &facts);
  ASSERT_THAT(facts.paths, SizeIs(3));
  EXPECT_TRUE(facts.paths[1].untried);
  EXPECT_THAT(std::string(facts.paths[1].status.message()), HasSubstr("/nowhere/hfctl"));
}

TEST(CollectiveCauses, ASourceIsAnsweredByAProgramThatReadsItsDeadline) {
  Facts facts = ThreeGpus();
  const std::string line = MeasuredLine(Measured(PathKind::kAllReduce, 1e9));
  CollectiveSource source({"/bin/sh", "-c", "test $(cat | wc -c) -gt 8 && echo '" + line + "'"},
                          MonotonicClock());
  source.Collect(MonotonicClock()->Now() + absl::Seconds(60), &facts);
  ASSERT_THAT(facts.paths, SizeIs(3));
  EXPECT_EQ(facts.paths[1].bytes_per_second, 1e9);
}

}  // namespace
}  // namespace doctor
}  // namespace hyperframes
