// Chaos mode across two nodes, on simulated GPUs over TCP and on real ones over NCCL: copies are
// delayed at random, freed slots poisoned and sources overwritten as soon as they may be. With
// every event in place nothing is wrong; with one left out on purpose something is, in either
// direction. Without two GPUs the CUDA half is skipped, and counted as skipped.
#include <signal.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/device/conformance_backends.h"
#include "agent/engine/frame_engine.h"
#include "agent/transfer/two_nodes.h"
#include "gtest/gtest.h"

#if defined(__SANITIZE_THREAD__)
#define HF_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HF_TSAN 1
#endif
#endif

namespace hyperframes {
namespace {

constexpr Bytes kBytes = 3000;

struct Live {
  StorageHandle handle;
  char value;
  Bytes bytes;
};

// Buffers of the program on its GPU, handed out in a circle.
class Buffers {
 public:
  explicit Buffers(ConformanceBackend* backend)
      : memory_(backend->Borrow(backend->compute(), kCount * kBytes)) {}
  char* Next() { return memory_->data() + (next_++ % kCount) * kBytes; }

 private:
  static constexpr Bytes kCount = 256;
  const std::unique_ptr<Memory> memory_;
  Bytes next_ = 0;
};

// A program whose frames wait on another node.
class Program {
 public:
  Program(ConformanceBackend* backend, std::unique_ptr<Memory> memory, ChaosOptions chaos)
      : backend_(backend), sources_memory_(backend), reloads_memory_(backend) {
    FrameEngineOptions options;
    options.stash_limit = 4 * kBytes;
    options.chaos = chaos;
    std::vector<EngineArena> arenas(1);
    arenas[0].lease_id = "lease-1";
    arenas[0].tier = Tier::kPeer;
    arenas[0].memory = std::move(memory);
    engine_ = FrameEngine::Create(backend->compute(), std::move(arenas), options).value();
  }

  void Put(Bytes bytes) {
    const char value = static_cast<char>(1 + puts_ % 100);
    char* const source = sources_memory_.Next();
    backend_->FillOnCompute(source, value, bytes);
    StorageKey key;
    key.ordinal = static_cast<int32_t>(puts_++ % 8);
    const Placement put = engine_->Put(key, source, bytes, Tier::kPeer, "", -1, nullptr).value();
    if (put.handle == 0) return;  // It stayed: nothing to compare.
    ++moved_;
    live_.push_back({put.handle, value, bytes});
    sources_.push_back(source);
  }

  // Overwrites every source that may be dropped now, as the next kernel would.
  void Release(Bytes limit) {
    for (size_t i = engine_->TakeReleasable(limit, nullptr).size(); i > 0; --i) {
      backend_->FillOnCompute(sources_.front(), 0x77, kBytes);
      sources_.pop_front();
    }
  }

  void Consume(size_t index) {
    const Live storage = live_[index];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    char* const back = reloads_memory_.Next();
    backend_->FillOnCompute(back, 0, storage.bytes);
    EXPECT_TRUE(engine_->Fetch(storage.handle, back, false, nullptr).ok());
    EXPECT_TRUE(engine_->Wait(storage.handle, nullptr).ok());
    bool wrong = false;
    for (const char byte : backend_->ReadOnCompute(back, storage.bytes)) {
      wrong |= byte != storage.value;
    }
    wrong_ += wrong;
    engine_->Drop(storage.handle);
  }

  size_t live() const { return live_.size(); }
  int64_t moved() const { return moved_; }
  int64_t wrong() const { return wrong_; }

 private:
  ConformanceBackend* const backend_;
  Buffers sources_memory_;
  Buffers reloads_memory_;
  std::vector<Live> live_;
  std::deque<char*> sources_;
  int64_t puts_ = 0;
  int64_t moved_ = 0;
  int64_t wrong_ = 0;
  std::unique_ptr<FrameEngine> engine_;  // Last: drained before the buffers go.
};

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
  Program program(pair.backend.get(), pair.nodes->Lease(16 * 3072, 16 * kKiB).value(), chaos);
  std::mt19937 random(7);
  // Where both nodes are one GPU, its processes take turns of milliseconds.
  const int64_t moves = GetParam() == "host" ? 3000 : 500;
  while (program.moved() < moves) {
    program.Put(1 + static_cast<Bytes>(random() % kBytes));
    if (random() % 2 == 0) program.Release(random() % 2 == 0 ? 0 : 2 * kBytes);
    while (program.live() > random() % 24) program.Consume(random() % program.live());
  }
  program.Release(0);
  while (program.live() > 0) program.Consume(0);
  EXPECT_EQ(program.wrong(), 0);
}

// docs/cases.md C7, on either transport: it stops in the middle of a frame.
TEST_P(TransferChaosTest, APeerThatStopsInAFrameIsNamedWithinTheDeadlineAndNothingHangs) {
  HF_START_OR_SKIP(pair, GetParam(), "2s");
  constexpr Bytes kFrame = 64 * kMiB;
  std::vector<EngineArena> arenas(1);
  arenas[0].lease_id = "lease-1";
  arenas[0].tier = Tier::kPeer;
  arenas[0].memory = pair.nodes->Lease(kFrame, 4 * kMiB).value();
  const auto frame = pair.backend->Borrow(pair.backend->compute(), kFrame);
  // Behind the frame: its lanes are drained before that goes.
  const auto engine =
      FrameEngine::Create(pair.backend->compute(), std::move(arenas), FrameEngineOptions()).value();
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
  Program program(pair.backend.get(), pair.nodes->Lease(kMiB, kMiB).value(), chaos);
  for (int round = 0; round < 200 && program.wrong() == 0; ++round) {
    program.Put(kBytes);
    if (direction == Direction::kOut) program.Release(0);
    program.Consume(0);
    program.Release(0);
  }
  EXPECT_GT(program.wrong(), 0);
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
