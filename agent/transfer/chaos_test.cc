// Chaos mode across two nodes, on simulated GPUs over TCP and on real ones over NCCL: copies are
// delayed at random, freed slots poisoned and sources overwritten as soon as they may be. With
// every event in place nothing is wrong; with one left out on purpose something is, in either
// direction. Without two GPUs the CUDA half is skipped, and counted as skipped.
#include <signal.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/engine/chaos_program.h"
#include "agent/transfer/two_nodes.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

constexpr Bytes kBytes = 3000;

struct NodePair {
  std::unique_ptr<ConformanceBackend> backend;
  std::unique_ptr<TwoNodes> nodes;
};

// NotFound, Unimplemented: what is missing for a test on `name`.
absl::StatusOr<NodePair> StartTwoNodes(const std::string& name,
                                       const std::string& deadline = "20s") {
  absl::StatusOr<std::unique_ptr<ConformanceBackend>> backend = ConformanceBackend::Open(name);
  if (!backend.ok()) return backend.status();
  TwoNodesOptions options;
  options.hftransfer = "agent/hftransfer";
  options.backend = name;
  options.deadline = deadline;
  options.near = (*backend)->compute();
  options.far = (*backend)->peer();
  NodePair pair;
  pair.backend = *std::move(backend);
  pair.nodes = TwoNodes::Start(options).value();
  return pair;
}

std::vector<EngineArena> ArenaIn(std::unique_ptr<Memory> lease) {
  std::vector<EngineArena> arenas(1);
  arenas[0].lease_id = "lease-1";
  arenas[0].tier = Tier::kPeer;
  arenas[0].memory = std::move(lease);
  return arenas;
}

// A program whose frames wait on the other node, on lanes with `chaos`.
std::unique_ptr<ChaosProgram> StartProgram(const NodePair& pair, std::unique_ptr<Memory> lease,
                                           const ChaosOptions& chaos) {
  FrameEngineOptions options;
  options.stash_limit = 4 * kBytes;
  options.chaos = chaos;
  return std::make_unique<ChaosProgram>(pair.backend.get(), ArenaIn(std::move(lease)), options,
                                        kBytes);
}

// Opens both nodes, or skips the test with what is missing.
#define HF_START_OR_SKIP(pair, ...)                 \
  auto started_##pair = StartTwoNodes(__VA_ARGS__); \
  if (!started_##pair.ok()) {                       \
    GTEST_SKIP() << started_##pair.status();        \
  }                                                 \
  const NodePair pair = std::move(started_##pair).value()

class TransferChaosTest : public testing::TestWithParam<std::string> {};

TEST_P(TransferChaosTest, FindsNothingInManyPutsAndFetches) {
  HF_START_OR_SKIP(pair, GetParam());
  ChaosOptions chaos;
  chaos.enabled = true;
  chaos.longest_delay = absl::Microseconds(60);
  // Sixteen slots, and staging for a few pieces: everything is reused all the time.
  const auto program = StartProgram(pair, pair.nodes->Lease(16 * 3072, 16 * kKiB).value(), chaos);
  std::mt19937 random(7);
  // Where both nodes are one GPU, its processes take turns of milliseconds.
  const int64_t moves = GetParam() == "host" ? 3000 : 500;
  while (program->moved() < moves) {
    program->Put(Tier::kPeer, 1 + static_cast<Bytes>(random() % kBytes));
    if (random() % 2 == 0) program->Release(random() % 2 == 0 ? 0 : 2 * kBytes);
    while (program->live() > random() % 24) program->Consume(random() % program->live());
  }
  program->Release(0);
  while (program->live() > 0) program->Consume(0);
  EXPECT_EQ(program->wrong_storages(), 0);
}

// docs/cases.md C7, on either transport: it stops in the middle of a frame.
TEST_P(TransferChaosTest, APeerThatStopsInAFrameIsNamedWithinTheDeadlineAndNothingHangs) {
  HF_START_OR_SKIP(pair, GetParam(), "2s");
  constexpr Bytes kFrame = 64 * kMiB;
  const auto frame = pair.backend->Borrow(pair.backend->compute(), kFrame);
  // Behind the frame: its lanes are drained before that goes.
  const auto engine = FrameEngine::Create(pair.backend->compute(),
                                          ArenaIn(pair.nodes->Lease(kFrame, 4 * kMiB).value()),
                                          FrameEngineOptions())
                          .value();
  const Placement first =
      engine->Put({}, frame->data(), kMiB, Tier::kPeer, "", -1, nullptr).value();
  ASSERT_TRUE(engine->Fetch(first.handle, frame->data(), false, nullptr).ok());
  ASSERT_TRUE(engine->Wait(first.handle, nullptr).ok());
  engine->Drop(first.handle);
  // More than every buffer on the way can take.
  StorageKey key;
  key.block = 3;
  std::thread stopper([&] { pair.nodes->far().Signal(SIGSTOP); });
  const auto put = engine->Put(key, frame->data(), kFrame, Tier::kPeer, "", -1, nullptr);
  absl::Status status = put.status();
  stopper.join();
  if (put.ok()) {
    status = engine->Fetch(put->handle, frame->data(), false, nullptr);
    if (status.ok()) status = engine->Wait(put->handle, nullptr);
    engine->Drop(put->handle);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(std::string(status.message()).find("node far"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("answer"), std::string::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(Backends, TransferChaosTest, testing::Values("host", "cuda"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

class TransferChaosLaneTest : public testing::TestWithParam<std::tuple<std::string, Direction>> {};

TEST_P(TransferChaosLaneTest, FindsTheEventThatIsMissingOnPurpose) {
#ifdef HF_TSAN
  GTEST_SKIP() << "the planted fault is a data race, which ThreadSanitizer reports by itself";
#endif
  const auto& [name, direction] = GetParam();
  HF_START_OR_SKIP(pair, name);
  ChaosOptions chaos;
  chaos.enabled = true;
  chaos.longest_delay = absl::Milliseconds(10);
  chaos.skip_event = true;
  chaos.skip_direction = direction;
  const auto program = StartProgram(pair, pair.nodes->Lease(kMiB, kMiB).value(), chaos);
  for (int round = 0; round < 200 && program->wrong_storages() == 0; ++round) {
    program->Put(Tier::kPeer, kBytes);
    if (direction == Direction::kOut) program->Release(0);
    program->Consume(0);
    program->Release(0);
  }
  EXPECT_GT(program->wrong_storages(), 0);
}

INSTANTIATE_TEST_SUITE_P(Lanes, TransferChaosLaneTest,
                         testing::Combine(testing::Values("host", "cuda"),
                                          testing::Values(Direction::kOut, Direction::kIn)),
                         [](const testing::TestParamInfo<TransferChaosLaneTest::ParamType>& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) == Direction::kOut ? "Out" : "In");
                         });

}  // namespace
}  // namespace hyperframes
