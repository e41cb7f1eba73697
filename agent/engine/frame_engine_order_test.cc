// What the engine orders, proved on lanes that move only when the test steps them. The same program
// runs as on the host backend (waits block) and as on CUDA (waits are queued).
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/engine/every_lane.h"
#include "agent/engine/frame_engine.h"
#include "agent/engine/manual_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Bytes kBytes = 512;
constexpr int kStorages = 12;
constexpr int kBuffers = 2;  // Few: a reload finds its buffer with the last consumer still queued.

EngineArena Arena(ManualDevice* device, Tier tier, Bytes bytes) {
  EngineArena arena;
  arena.lease_id = TierName(tier);
  arena.tier = tier;
  arena.memory = device->Allocate(bytes).value();
  return arena;
}

std::unique_ptr<FrameEngine> Engine(ManualDevice* device, FrameEngineOptions options,
                                    Bytes arena_bytes = 8 * kBytes) {
  std::vector<EngineArena> arenas;
  arenas.push_back(Arena(device, Tier::kPeer, arena_bytes));
  arenas.push_back(Arena(device, Tier::kHost, arena_bytes));
  return FrameEngine::Create(device, std::move(arenas), options).value();
}

// A program as PyTorch would run it: kernels write sources, sources are reused as soon as they are
// released, reload buffers as soon as their consumer has run. Counts wrong bytes seen by consumers.
class Program {
 public:
  Program(ManualDevice* device, FrameEngine* engine, ManualDevice::Compute mode)
      : device_(device), engine_(engine), queued_(mode == ManualDevice::Compute::kQueued) {
    sources_.assign(kStorages, std::vector<char>(kBytes));
    buffers_.assign(kBuffers, std::vector<char>(kBytes));
  }

  // One step: forward, then backward in reverse. With `eager`, every other reload is started at
  // once behind its put, as a short block does.
  void Step(bool eager) {
    std::vector<StorageHandle> handles(kStorages, 0);
    for (int i = 0; i < kStorages; ++i) {
      const char value = static_cast<char>(16 * (++round_ % 13) + i);
      Kernel([this, i, value] { std::memset(sources_[i].data(), value, kBytes); });
      StorageKey key;
      key.ordinal = i;
      const Tier tier = i % 2 == 0 ? Tier::kPeer : Tier::kHost;
      const Placement put =
          engine_->Put(key, sources_[i].data(), kBytes, tier, "", -1, nullptr).value();
      handles[i] = put.handle;
      source_of_[put.handle] = i;
      if (put.handle != 0 && eager && i % 4 < 2) {
        Consume(i, value, put.handle);
        handles[i] = 0;
      }
      Release(/*limit=*/i % 3 == 0 ? 0 : 2 * kBytes);
      expected_[i] = value;
    }
    Release(0);
    for (int i = kStorages - 1; i >= 0; --i) {
      if (handles[i] != 0) Consume(i, expected_[i], handles[i]);
    }
    EXPECT_TRUE(engine_->Quiesce().ok());
    device_->StepUntilIdle();
  }

  int wrong_bytes() const { return wrong_bytes_; }

 private:
  void Kernel(std::function<void()> work) {
    if (queued_) {
      device_->compute()->Run(std::move(work));
    } else {
      work();
    }
  }

  void Release(Bytes limit) {
    for (const StorageHandle handle : engine_->TakeReleasable(limit, nullptr)) {
      const int source = source_of_.at(handle);
      Kernel([this, source] { std::memset(sources_[source].data(), 0x11, kBytes); });
    }
  }

  void Consume(int i, char value, StorageHandle handle) {
    std::vector<char>* const buffer = &buffers_[static_cast<size_t>(i) % kBuffers];
    EXPECT_TRUE(engine_->Fetch(handle, buffer->data(), false, nullptr).ok());
    EXPECT_TRUE(engine_->Wait(handle, nullptr).ok());
    Kernel([this, buffer, value] {
      for (const char byte : *buffer) wrong_bytes_ += byte != value;
      std::memset(buffer->data(), 0x22, kBytes);
    });
    engine_->Drop(handle);
  }

  ManualDevice* const device_;
  FrameEngine* const engine_;
  const bool queued_;
  std::vector<std::vector<char>> sources_;
  std::vector<std::vector<char>> buffers_;
  std::map<StorageHandle, int> source_of_;
  char expected_[kStorages] = {};
  int round_ = 0;
  int wrong_bytes_ = 0;
};

class OrderTest : public testing::TestWithParam<LaneCase> {
 protected:
  // Wrong bytes over many random interleavings, with or without this lane's event planted missing.
  static int WrongBytes(const LaneCase& lane, bool plant) {
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      ManualDevice device(lane.mode);
      device.Shuffle(seed);
      FrameEngineOptions options;
      options.stash_limit = 3 * kBytes;
      PlantOn(lane, plant, &options);
      const auto engine = Engine(&device, options);
      Program program(&device, engine.get(), lane.mode);
      for (int step = 0; step < 4; ++step) program.Step(/*eager=*/step % 2 == 1);
      wrong += program.wrong_bytes();
    }
    return wrong;
  }
};

TEST_P(OrderTest, FindsAnEventThatIsMissingOnPurpose) {
  EXPECT_GT(WrongBytes(GetParam(), /*plant=*/true), 0);
}

TEST_P(OrderTest, FindsNothingWhenNoEventIsMissing) {
  EXPECT_EQ(WrongBytes(GetParam(), /*plant=*/false), 0);
}

INSTANTIATE_TEST_SUITE_P(Lanes, OrderTest, EveryLane(), LaneName);

TEST(FrameEngineOrder, WritesASlotAgainOnlyAfterTheReloadFromIt) {
  ManualDevice device(ManualDevice::Compute::kQueued);
  std::vector<char> first(kBytes, '1');
  std::vector<char> second(kBytes, '2');
  std::vector<char> back(kBytes);
  const auto engine = Engine(&device, {}, /*arena_bytes=*/kBytes);  // One slot per tier.
  const auto a = engine->Put({}, first.data(), kBytes, Tier::kPeer, "", -1, nullptr).value();
  device.StepUntilIdle();
  ASSERT_TRUE(engine->Fetch(a.handle, back.data(), false, nullptr).ok());
  ASSERT_TRUE(engine->Wait(a.handle, nullptr).ok());
  // The consumer is ordered and the handle dead, as on CUDA, but nothing has run yet. A put from
  // another compute stream, which knows nothing of that consumer, would overwrite the slot now.
  device.Prefer("out/peer");
  engine->Drop(a.handle);
  const auto other = device.CreateComputeStream("other");
  const auto b = engine->Put({}, second.data(), kBytes, Tier::kPeer, "", -1, other.get()).value();
  ASSERT_EQ(b.placed, Tier::kPeer) << "a freed slot is handed out at once";
  while (other->Step()) {
  }
  device.StepUntilIdle();
  EXPECT_EQ(back, first);
  engine->Drop(b.handle);
}

TEST(FrameEngineOrder, ReleasesByWhatWasWaitedForAndNotByHowFarCopiesAre) {
  ManualDevice device(ManualDevice::Compute::kBlocking);
  FrameEngineOptions options;
  options.stash_limit = 2 * kBytes;
  std::vector<char> source(kBytes, 's');
  const auto engine = Engine(&device, options);
  const auto put = [&] {
    return engine->Put({}, source.data(), kBytes, Tier::kPeer, "", -1, nullptr).value().handle;
  };
  const StorageHandle a = put();
  const StorageHandle b = put();
  EXPECT_EQ(engine->stats().stash_bytes, 2 * kBytes);
  device.StepUntilIdle();  // However fast the copies were:
  EXPECT_THAT(engine->TakeReleasable(-1, nullptr), IsEmpty());
  const StorageHandle c = put();  // Over the limit: waits for the oldest.
  EXPECT_THAT(engine->TakeReleasable(-1, nullptr), ElementsAre(a));
  EXPECT_THAT(engine->TakeReleasable(kBytes, nullptr), ElementsAre(b));
  EXPECT_THAT(engine->TakeReleasable(kBytes, nullptr), IsEmpty());
  EXPECT_THAT(engine->TakeReleasable(0, nullptr), ElementsAre(c));
  EXPECT_EQ(engine->stats().stash_bytes, 0);
  for (const StorageHandle handle : {a, b, c}) engine->Drop(handle);
}

TEST(FrameEngineOrder, PutWaitsForTheOldestCopyAndNoOther) {
  ManualDevice device(ManualDevice::Compute::kBlocking);
  FrameEngineOptions options;
  options.stash_limit = kBytes;
  std::vector<char> source(kBytes, 's');
  const auto engine = Engine(&device, options);
  const auto put = [&](Tier tier) {
    return engine->Put({}, source.data(), kBytes, tier, "", -1, nullptr).value().handle;
  };
  const StorageHandle a = put(Tier::kPeer);
  EXPECT_EQ(device.steps(), 0) << "one storage may be held";
  device.Prefer("out/peer");
  const StorageHandle b = put(Tier::kHost);
  EXPECT_EQ(device.steps(), 2) << "the copy of the first, and its event";
  EXPECT_THAT(engine->TakeReleasable(-1, nullptr), ElementsAre(a));
  for (const StorageHandle handle : {a, b}) engine->Drop(handle);
}

TEST(FrameEngineOrder, CountsTheTimeThatTheProgramStoodStillAsExposed) {
  FakeClock clock;
  ManualDevice device(ManualDevice::Compute::kBlocking, &clock);
  FrameEngineOptions options;
  options.clock = &clock;
  std::vector<char> source(kBytes, 's');
  const auto engine = Engine(&device, options);
  const auto put = engine->Put({}, source.data(), kBytes, Tier::kPeer, "", -1, nullptr).value();
  EXPECT_EQ(engine->stats().exposed_wait, absl::ZeroDuration());
  engine->TakeReleasable(0, nullptr);  // Copy and event: two steps of a millisecond.
  EXPECT_EQ(engine->stats().exposed_wait, absl::Milliseconds(2));
  std::vector<char> back(kBytes);
  ASSERT_TRUE(engine->Fetch(put.handle, back.data(), true, nullptr).ok());
  device.StepUntilIdle();  // The copy hides behind computation.
  ASSERT_TRUE(engine->Wait(put.handle, nullptr).ok());
  EXPECT_EQ(engine->stats().exposed_wait, absl::Milliseconds(2));
  engine->Drop(put.handle);
}

// The allocator hands a released source to the stream that it was made on, which need not be the
// one that put it or the one that released it.
TEST(FrameEngineOrder, MakesEveryStreamOfTheStepWaitBeforeASourceGoes) {
  ManualDevice device(ManualDevice::Compute::kQueued);
  const auto side = device.CreateComputeStream("side");
  std::vector<char> early(kBytes, 'e');
  std::vector<char> source(kBytes, 's');
  std::vector<char> back(kBytes, '-');
  const auto engine = Engine(&device, {});
  StorageKey key;
  const auto first = engine->Put(key, early.data(), kBytes, Tier::kHost, "", -1, nullptr).value();
  key.ordinal = 1;
  const auto put = engine->Put(key, source.data(), kBytes, Tier::kPeer, "", -1, side.get()).value();
  EXPECT_THAT(engine->TakeReleasable(0, side.get()), ElementsAre(first.handle, put.handle));
  device.compute()->Run([&source] { std::memset(source.data(), 'x', kBytes); });
  device.Prefer("compute");
  device.StepUntilIdle();
  ASSERT_TRUE(engine->Fetch(put.handle, back.data(), false, nullptr).ok());
  ASSERT_TRUE(engine->Wait(put.handle, nullptr).ok());
  device.StepUntilIdle();
  EXPECT_EQ(back, std::vector<char>(kBytes, 's'));
  for (const StorageHandle handle : {first.handle, put.handle}) engine->Drop(handle);
}

TEST(FrameEngineOrder, DropWaitsForAReloadThatNobodyConsumed) {
  ManualDevice device(ManualDevice::Compute::kBlocking);
  std::vector<char> source(kBytes, 's');
  const auto engine = Engine(&device, {});
  std::vector<char> back(kBytes, '-');
  const auto put = engine->Put({}, source.data(), kBytes, Tier::kPeer, "", -1, nullptr).value();
  ASSERT_TRUE(engine->Fetch(put.handle, back.data(), true, nullptr).ok());
  engine->Drop(put.handle);
  EXPECT_EQ(back, source) << "the caller frees the buffer now: nothing may be written later";
}

TEST(FrameEngineOrder, KeepsTheSourceOfADroppedStorageUntilItsCopyIsOver) {
  ManualDevice device(ManualDevice::Compute::kBlocking);
  const auto engine = Engine(&device, {}, /*arena_bytes=*/kBytes);
  std::vector<char> source(kBytes, 's');
  const auto a = engine->Put({}, source.data(), kBytes, Tier::kPeer, "", -1, nullptr).value();
  engine->Drop(a.handle);
  EXPECT_EQ(device.steps(), 0) << "a drop does not wait for a copy-out";
  // The slot is free again, and what is written there now comes after the copy of the dead one.
  std::vector<char> next(kBytes, 'n');
  const auto b = engine->Put({}, next.data(), kBytes, Tier::kPeer, "", -1, nullptr).value();
  ASSERT_EQ(b.placed, Tier::kPeer);
  EXPECT_THAT(engine->TakeReleasable(0, nullptr), ElementsAre(a.handle, b.handle));
  std::vector<char> back(kBytes);
  ASSERT_TRUE(engine->Fetch(b.handle, back.data(), false, nullptr).ok());
  ASSERT_TRUE(engine->Wait(b.handle, nullptr).ok());
  EXPECT_EQ(back, next);
  engine->Drop(b.handle);
}

TEST(FrameEngineOrder, DrainsItsLanesBeforeItsMemoryGoes) {
  ManualDevice device(ManualDevice::Compute::kBlocking);
  std::vector<char> source(kBytes, 's');
  std::vector<char> back(kBytes, '-');
  {
    const auto engine = Engine(&device, {});
    const auto put = engine->Put({}, source.data(), kBytes, Tier::kPeer, "", -1, nullptr).value();
    ASSERT_TRUE(engine->Fetch(put.handle, back.data(), true, nullptr).ok());
  }
  EXPECT_EQ(back, source);
}

}  // namespace
}  // namespace hyperframes
