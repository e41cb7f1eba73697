// Storages in company and alone, in random interleavings of lanes and program: no event is missing,
// and the one that is left out on purpose shows, on every lane.
#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/engine/every_lane.h"
#include "agent/engine/frame_engine.h"
#include "agent/engine/manual_device.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

constexpr Bytes kSmall = 256;
constexpr Bytes kLarge = 4 * kSmall;
constexpr Bytes kLimit = 32 * kSmall;  // A batch holds up to 8.

// Puts runs of small storages with large ones between them, and overwrites each source as soon as
// it may. Takes them back one by one, or as the engine names them.
class Program {
 public:
  Program(ManualDevice* device, FrameEngine* engine, ManualDevice::Compute mode, uint64_t seed)
      : device_(device),
        engine_(engine),
        queued_(mode == ManualDevice::Compute::kQueued),
        random_(seed) {}

  void Step() {
    for (int run = 0; run < 8; ++run) {
      const Tier tier = random_() % 2 == 0 ? Tier::kPeer : Tier::kHost;
      for (size_t i = random_() % 6; i > 0; --i) Put(tier, 1 + random_() % kSmall);
      if (random_() % 3 == 0) Put(tier, kLarge);
      if (random_() % 2 == 0) Release(static_cast<Bytes>(random_() % 3) * kSmall);
      // A short block: its backward begins with its copy-outs still waiting for company.
      if (random_() % 3 == 0) ConsumeAhead();
      if (random_() % 4 == 0 && !live_.empty()) ConsumeOne();
      if (random_() % 4 == 0 && !live_.empty()) {
        engine_->Drop(live_.begin()->first);
        live_.erase(live_.begin());
      }
    }
    while (!live_.empty()) {
      if (random_() % 2 == 0) {
        ConsumeAhead();
      } else {
        ConsumeOne();
      }
    }
    Release(0);
    EXPECT_TRUE(engine_->Quiesce().ok());
    device_->StepUntilIdle();
    buffers_.clear();
  }

  int wrong() const { return wrong_; }

 private:
  using Buffer = std::vector<char>;
  struct Live {
    char value;
    Bytes bytes;
  };

  void Kernel(std::function<void()> work) {
    if (queued_) {
      device_->compute()->Run(std::move(work));
    } else {
      work();
    }
  }
  Buffer* NewBuffer(Bytes bytes) {
    buffers_.emplace_back(static_cast<size_t>(bytes), '-');
    return &buffers_.back();
  }

  void Put(Tier tier, Bytes bytes) {
    const char value = static_cast<char>(1 + puts_ % 100);
    Buffer* const source = NewBuffer(bytes);
    Kernel([source, value] { std::fill(source->begin(), source->end(), value); });
    StorageKey key;
    key.ordinal = puts_++ % 64;
    const Placement put = engine_->Put(key, source->data(), bytes, tier, "", -1, nullptr).value();
    if (put.handle == 0) return;
    sources_[put.handle] = source;
    live_[put.handle] = {value, bytes};
  }

  void Release(Bytes limit) {
    for (const StorageHandle handle : engine_->TakeReleasable(limit, nullptr)) {
      Buffer* const source = sources_.at(handle);
      Kernel([source] { std::fill(source->begin(), source->end(), '~'); });
    }
  }

  void ConsumeOne() {
    auto found = live_.begin();
    std::advance(found, static_cast<std::ptrdiff_t>(random_() % live_.size()));
    const StorageHandle handle = found->first;
    Buffer* const back = NewBuffer(found->second.bytes);
    EXPECT_TRUE(engine_->Fetch(handle, back->data(), false, nullptr).ok());
    Consume(handle, back);
  }

  void ConsumeAhead() {
    std::vector<std::pair<StorageHandle, Buffer*>> reloads;
    for (const StorageHandle handle : engine_->NextToPrefetch()) {
      if (random_() % 8 == 0) continue;  // Somebody holds it already.
      Buffer* const back = NewBuffer(live_.at(handle).bytes);
      EXPECT_TRUE(engine_->Fetch(handle, back->data(), true, nullptr).ok());
      reloads.emplace_back(handle, back);
    }
    std::shuffle(reloads.begin(), reloads.end(), random_);
    for (const auto& [handle, back] : reloads) Consume(handle, back);
  }

  void Consume(StorageHandle handle, Buffer* back) {
    EXPECT_TRUE(engine_->Wait(handle, nullptr).ok());
    const char value = live_.at(handle).value;
    Kernel([this, back, value] {
      for (const char byte : *back) wrong_ += byte != value;
    });
    engine_->Drop(handle);
    live_.erase(handle);
  }

  ManualDevice* const device_;
  FrameEngine* const engine_;
  const bool queued_;
  std::mt19937_64 random_;
  std::deque<Buffer> buffers_;
  std::map<StorageHandle, Buffer*> sources_;
  std::map<StorageHandle, Live> live_;
  int puts_ = 0;
  int wrong_ = 0;
};

struct Outcome {
  int wrong = 0;
  size_t in_company = 0;  // Batches of two and more, either way.
};

Outcome RunSteps(const LaneCase& lane, bool plant) {
  Outcome outcome;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    ManualDevice device(lane.mode);
    device.Shuffle(seed);
    FrameEngineOptions options;
    options.stash_limit = kLimit;
    options.prefetch_limit = kLimit;
    PlantOn(lane, plant, &options);
    std::vector<EngineArena> arenas;
    for (const Tier tier : {Tier::kPeer, Tier::kHost}) {
      EngineArena arena;
      arena.tier = tier;
      arena.memory = device.Allocate(64 * kSmall).value();
      arenas.push_back(std::move(arena));
    }
    const auto engine = FrameEngine::Create(&device, std::move(arenas), options).value();
    Program program(&device, engine.get(), lane.mode, seed);
    for (int step = 0; step < 4; ++step) program.Step();
    outcome.wrong += program.wrong();
    for (const std::string& batch : device.batches()) {
      outcome.in_company += batch.size() < 2 || batch.substr(batch.size() - 2) != " 1";
    }
  }
  return outcome;
}

class BatchOrderTest : public testing::TestWithParam<LaneCase> {};

TEST_P(BatchOrderTest, FindsAnEventThatIsMissingOnPurpose) {
  EXPECT_GT(RunSteps(GetParam(), /*plant=*/true).wrong, 0);
}

TEST_P(BatchOrderTest, FindsNothingWhenNoEventIsMissing) {
  const Outcome outcome = RunSteps(GetParam(), /*plant=*/false);
  EXPECT_EQ(outcome.wrong, 0);
  EXPECT_GT(outcome.in_company, 500u);
}

INSTANTIATE_TEST_SUITE_P(Lanes, BatchOrderTest, EveryLane(), LaneName);

}  // namespace
}  // namespace hyperframes
