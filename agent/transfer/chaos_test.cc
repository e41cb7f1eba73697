// Chaos mode across two nodes: copies are delayed at random, freed slots poisoned and sources
// overwritten as soon as they may be. With every event in place nothing is wrong; with one left out
// on purpose something is, in either direction.
#include <algorithm>
#include <deque>
#include <random>

#include "agent/engine/frame_engine.h"
#include "agent/transfer/transfer_fixture.h"

#if defined(__SANITIZE_THREAD__)
#define HF_TSAN 1
#endif

namespace hyperframes {
namespace {

constexpr Bytes kBytes = 3000;

struct Live {
  StorageHandle handle;
  char value;
  Bytes bytes;
};

// A program whose frames wait on node b.
class Program {
 public:
  Program(Device* device, std::unique_ptr<Memory> memory, ChaosOptions chaos)
      : sources_memory_(256 * kBytes), reload_(kBytes) {
    FrameEngineOptions options;
    options.stash_limit = 4 * kBytes;
    options.chaos = chaos;
    std::vector<EngineArena> arenas(1);
    arenas[0].lease_id = "lease-1";
    arenas[0].tier = Tier::kPeer;
    arenas[0].gpu = "SIM-b-0";
    arenas[0].memory = std::move(memory);
    engine_ = FrameEngine::Create(device, std::move(arenas), options).value();
  }

  void Put(Bytes bytes) {
    const char value = static_cast<char>(1 + puts_ % 100);
    char* const source = sources_memory_.data() + puts_ % 256 * kBytes;
    std::fill_n(source, bytes, value);
    StorageKey key;
    key.ordinal = static_cast<int32_t>(puts_++ % 8);
    const Placement put = engine_->Put(key, source, bytes, Tier::kPeer, "", -1, nullptr).value();
    if (put.handle == 0) return;
    ++moved_;
    live_.push_back({put.handle, value, bytes});
    sources_.push_back(source);
  }
  // Overwrites every source that may be dropped now, as the next kernel would.
  void Release(Bytes limit) {
    for (size_t i = engine_->TakeReleasable(limit, nullptr).size(); i > 0; --i) {
      std::fill_n(sources_.front(), kBytes, 0x77);
      sources_.pop_front();
    }
  }
  void Consume(size_t index) {
    const Live storage = live_[index];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    std::fill(reload_.begin(), reload_.end(), 0);
    EXPECT_TRUE(engine_->Fetch(storage.handle, reload_.data(), false, nullptr).ok());
    EXPECT_TRUE(engine_->Wait(storage.handle, nullptr).ok());
    wrong_ += std::any_of(reload_.begin(), reload_.begin() + storage.bytes,
                          [&](char byte) { return byte != storage.value; });
    engine_->Drop(storage.handle);
  }

  size_t live() const { return live_.size(); }
  int64_t moved() const { return moved_; }
  int64_t wrong() const { return wrong_; }

 private:
  std::vector<char> sources_memory_;
  std::vector<char> reload_;
  std::vector<Live> live_;
  std::deque<char*> sources_;
  int64_t puts_ = 0;
  int64_t moved_ = 0;
  int64_t wrong_ = 0;
  std::unique_ptr<FrameEngine> engine_;  // Last: drained before the buffers go.
};

class TransferChaosTest : public TransferTest {};

TEST_F(TransferChaosTest, FindsNothingInThreeThousandPutsAndFetches) {
  StartFar();
  StartNear();
  ChaosOptions chaos;
  chaos.enabled = true;
  chaos.longest_delay = absl::Microseconds(60);
  // A slot for every sixteenth storage and staging for a few pieces: everything is reused.
  RemoteLease lease = Lease("lease-1", agent_->Lend("lease-1", 16 * 3072));
  lease.bytes = 16 * 3072;
  lease.staging_bytes = 16 * kKiB;
  Program program(device_.get(), channel_->Open(device_.get(), lease).value(), chaos);
  std::mt19937 random(7);
  while (program.moved() < 3000) {
    program.Put(1 + static_cast<Bytes>(random() % kBytes));
    if (random() % 2 == 0) program.Release(random() % 2 == 0 ? 0 : 2 * kBytes);
    while (program.live() > random() % 24) program.Consume(random() % program.live());
  }
  program.Release(0);
  while (program.live() > 0) program.Consume(0);
  EXPECT_EQ(program.wrong(), 0);
}

class TransferChaosLaneTest : public TransferTest, public testing::WithParamInterface<Direction> {};

TEST_P(TransferChaosLaneTest, FindsTheEventThatIsMissingOnPurpose) {
#ifdef HF_TSAN
  GTEST_SKIP() << "the planted fault is a data race, which ThreadSanitizer reports by itself";
#endif
  StartFar();
  StartNear();
  ChaosOptions chaos;
  chaos.enabled = true;
  chaos.longest_delay = absl::Milliseconds(10);
  chaos.skip_event = true;
  chaos.skip_direction = GetParam();
  Program program(device_.get(), OpenLease(), chaos);
  for (int round = 0; round < 200 && program.wrong() == 0; ++round) {
    program.Put(kBytes);
    if (GetParam() == Direction::kOut) program.Release(0);
    program.Consume(0);
    program.Release(0);
  }
  EXPECT_GT(program.wrong(), 0);
}

INSTANTIATE_TEST_SUITE_P(Lanes, TransferChaosLaneTest,
                         testing::Values(Direction::kOut, Direction::kIn),
                         [](const testing::TestParamInfo<Direction>& info) {
                           return info.param == Direction::kOut ? "Out" : "In";
                         });

}  // namespace
}  // namespace hyperframes
