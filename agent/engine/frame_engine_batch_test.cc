// Small storages in company, on lanes that move only when the test steps them.
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/engine/frame_engine.h"
#include "agent/engine/manual_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Bytes kSmall = 512;
constexpr Bytes kLimit = 64 * kSmall;  // Of which a batch holds a quarter: 16 storages.
constexpr Bytes kLarge = 16 * kSmall;

class BatchTest : public testing::Test {
 protected:
  void Start(FrameEngineOptions options = Options()) {
    std::vector<EngineArena> arenas;
    for (const auto& [tier, gpu] : {std::pair<Tier, const char*>{Tier::kPeer, "GPU-1"},
                                    {Tier::kPeer, "GPU-2"},
                                    {Tier::kHost, ""}}) {
      EngineArena arena;
      arena.lease_id = TierName(tier);
      arena.tier = tier;
      arena.gpu = gpu;
      arena.memory = device_.Allocate(256 * kSmall).value();
      arenas.push_back(std::move(arena));
    }
    engine_ = FrameEngine::Create(&device_, std::move(arenas), options).value();
  }
  static FrameEngineOptions Options() {
    FrameEngineOptions options;
    options.stash_limit = kLimit;
    options.prefetch_limit = kLimit;
    return options;
  }

  StorageHandle Put(Bytes bytes, Tier tier = Tier::kPeer, const std::string& gpu = "GPU-1",
                    void* stream = nullptr) {
    StorageKey key;
    key.ordinal = static_cast<int32_t>(sources_.size());
    sources_.push_back(
        std::make_unique<std::vector<char>>(bytes, static_cast<char>('a' + key.ordinal % 26)));
    return engine_->Put(key, sources_.back()->data(), bytes, tier, gpu, -1, stream).value().handle;
  }
  std::vector<StorageHandle> PutSmall(int count) {
    std::vector<StorageHandle> handles;
    for (int i = 0; i < count; ++i) handles.push_back(Put(kSmall));
    return handles;
  }
  void Fetch(StorageHandle handle, std::vector<char>* back, bool is_prefetch) {
    back->assign(static_cast<size_t>(engine_->SizeOf(handle)), '-');
    ASSERT_TRUE(engine_->Fetch(handle, back->data(), is_prefetch, nullptr).ok());
  }
  // What the storage that was put as the `index`th one brings back.
  void ExpectComesBack(StorageHandle handle, size_t index) {
    std::vector<char> back;
    Fetch(handle, &back, false);
    ASSERT_TRUE(engine_->Wait(handle, nullptr).ok());
    device_.StepUntilIdle();
    EXPECT_EQ(back, *sources_[index]);
    engine_->Drop(handle);
  }
  void ExpectAllComeBack(const std::vector<StorageHandle>& handles) {
    for (size_t i = 0; i < handles.size(); ++i) ExpectComesBack(handles[i], i);
    EXPECT_TRUE(engine_->Quiesce().ok());
  }

  ManualDevice device_{ManualDevice::Compute::kQueued};
  std::vector<std::unique_ptr<std::vector<char>>> sources_;
  std::unique_ptr<FrameEngine> engine_;
};

TEST_F(BatchTest, ALargePutStartsTheSmallOnesBeforeItself) {
  Start();
  std::vector<StorageHandle> handles = PutSmall(3);
  EXPECT_THAT(device_.batches(), IsEmpty());
  handles.push_back(Put(kLarge, Tier::kHost, ""));  // On whatever lane: they have waited enough.
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 3"));
  ExpectAllComeBack(handles);
}

TEST_F(BatchTest, AFullBatchStartsByItself) {
  Start();
  const std::vector<StorageHandle> handles = PutSmall(17);
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 16")) << "a quarter of the limit";
  ExpectAllComeBack(handles);
}

TEST_F(BatchTest, ABatchHasABoundedNumberOfStorages) {
  FrameEngineOptions options = Options();
  options.stash_limit = kGiB;
  Start(options);
  const std::vector<StorageHandle> handles = PutSmall(65);
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 64"));
  ExpectAllComeBack(handles);
}

TEST_F(BatchTest, EveryLenderHasCompanyOfItsOwn) {
  Start();
  const std::vector<StorageHandle> handles = {
      Put(kSmall), Put(kSmall), Put(kSmall, Tier::kPeer, "GPU-2"), Put(kSmall, Tier::kHost, ""),
      Put(kSmall, Tier::kHost, "")};
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 2", "out/peer 1"));
  EXPECT_THAT(engine_->TakeReleasable(0, nullptr), testing::ElementsAreArray(handles));
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 2", "out/peer 1", "out/host 2"));
  ExpectAllComeBack(handles);
}

TEST_F(BatchTest, NothingTravelsInCompanyWherePackingIsOff) {
  FrameEngineOptions options = Options();
  options.largest_packed = 0;
  Start(options);
  ExpectAllComeBack(PutSmall(20));
  EXPECT_THAT(device_.batches(), IsEmpty());
}

TEST_F(BatchTest, TheLimitCountsWhatWaitsForCompany) {
  Start();
  const std::vector<StorageHandle> handles = PutSmall(3);
  EXPECT_EQ(engine_->stats().stash_bytes, 3 * kSmall);
  EXPECT_THAT(engine_->TakeReleasable(-1, nullptr), IsEmpty());
  // Two would be enough for the limit; they came together and go together.
  EXPECT_THAT(engine_->TakeReleasable(kSmall, nullptr), testing::ElementsAreArray(handles));
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 3"));
  EXPECT_EQ(engine_->stats().stash_bytes, 0);
  ExpectAllComeBack(handles);
}

TEST_F(BatchTest, WhatIsReleasedDependsOnNoCopysProgress) {
  for (const bool copies_are_fast : {false, true}) {
    device_.StepUntilIdle();
    sources_.clear();
    Start();
    std::vector<StorageHandle> handles = PutSmall(6);
    for (int i = 0; i < 4; ++i) {
      handles.push_back(Put(kLarge - kSmall));
      if (copies_are_fast) device_.StepUntilIdle();
    }
    // Over the limit by less than the six: they all go, and nothing behind them.
    const std::vector<StorageHandle> first(handles.begin(), handles.begin() + 6);
    EXPECT_THAT(engine_->TakeReleasable(-1, nullptr), testing::ElementsAreArray(first));
    EXPECT_EQ(engine_->stats().stash_bytes, 4 * (kLarge - kSmall));
    ExpectAllComeBack(handles);
    engine_.reset();
  }
}

TEST_F(BatchTest, AFetchStartsTheCopyOutThatItReads) {
  Start();
  const std::vector<StorageHandle> handles = PutSmall(2);
  std::vector<char> back;
  Fetch(handles[0], &back, false);
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 2"));
  device_.Prefer("in/peer");
  ExpectAllComeBack(handles);
}

TEST_F(BatchTest, ADropStartsTheCopyOutSoThatTheSlotCanBeGivenAway) {
  Start();
  const StorageHandle dropped = Put(kSmall);
  const StorageHandle other = Put(kSmall);
  engine_->Drop(dropped);
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 2"));
  const StorageHandle in_its_slot = Put(kSmall);
  EXPECT_THAT(engine_->TakeReleasable(0, nullptr), ElementsAre(dropped, other, in_its_slot));
  ExpectComesBack(in_its_slot, 2);
  ExpectComesBack(other, 1);
}

TEST_F(BatchTest, WritesASlotAgainOnlyAfterTheReloadFromIt) {
  Start();
  const StorageHandle a = Put(kSmall);
  engine_->TakeReleasable(0, nullptr);
  device_.StepUntilIdle();
  std::vector<char> back;
  Fetch(a, &back, false);
  ASSERT_TRUE(engine_->Wait(a, nullptr).ok());
  // The reload has not run, and the slot is free. Another stream knows nothing of its consumer.
  device_.Prefer("out/peer");
  engine_->Drop(a);
  const auto other = device_.CreateComputeStream("other");
  std::vector<char> next(kSmall, 'n');
  const auto b = engine_->Put({}, next.data(), kSmall, Tier::kPeer, "GPU-1",
                              /*preferred_offset=*/0, other.get());
  ASSERT_TRUE(b.ok());
  engine_->TakeReleasable(0, other.get());
  while (other->Step()) {
  }
  device_.StepUntilIdle();
  EXPECT_EQ(back, *sources_[0]);
  engine_->Drop(b->handle);
}

TEST_F(BatchTest, StartsBehindEveryStreamThatMadeOneOfItsSources) {
  Start();
  const auto side = device_.CreateComputeStream("side");
  const StorageHandle a = Put(kSmall);
  const StorageHandle b = Put(kSmall, Tier::kPeer, "GPU-1", side.get());
  // Kernels that were queued before the puts would be here already; these come with the batch.
  device_.compute()->Run([this] { std::memset(sources_[0]->data(), 'A', kSmall); });
  side->Run([this] { std::memset(sources_[1]->data(), 'B', kSmall); });
  device_.Prefer("out/peer");
  engine_->TakeReleasable(0, nullptr);
  device_.StepUntilIdle();
  ExpectComesBack(a, 0);
  ExpectComesBack(b, 1);
  EXPECT_EQ(sources_[1]->front(), 'B');
}

TEST_F(BatchTest, ReloadsThatAreNamedTogetherStartTogether) {
  Start();
  const std::vector<StorageHandle> handles = PutSmall(4);
  engine_->TakeReleasable(0, nullptr);
  const std::vector<StorageHandle> due = engine_->NextToPrefetch();
  ASSERT_THAT(due, ElementsAre(handles[3], handles[2], handles[1], handles[0]));
  std::vector<std::vector<char>> back(4);
  for (size_t i = 0; i < 3; ++i) Fetch(due[i], &back[i], true);
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 4"));
  Fetch(due[3], &back[3], true);
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 4", "in/peer 4"));
  for (const StorageHandle handle : due) ASSERT_TRUE(engine_->Wait(handle, nullptr).ok());
  device_.StepUntilIdle();
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(back[i], *sources_[3 - i]);
  EXPECT_EQ(engine_->stats().prefetch_hits, 4);
  for (const StorageHandle handle : due) engine_->Drop(handle);
}

TEST_F(BatchTest, AWaitStartsTheReloadThatStillHadTimeForCompany) {
  Start();
  const std::vector<StorageHandle> handles = PutSmall(3);
  engine_->TakeReleasable(0, nullptr);
  const std::vector<StorageHandle> due = engine_->NextToPrefetch();
  std::vector<char> first;
  std::vector<char> second;
  Fetch(due[0], &first, true);
  Fetch(due[1], &second, true);
  ASSERT_TRUE(engine_->Wait(due[1], nullptr).ok());  // The third was never asked for.
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 3", "in/peer 2"));
  device_.StepUntilIdle();
  EXPECT_EQ(second, *sources_[1]);
  ASSERT_TRUE(engine_->Wait(due[0], nullptr).ok());
  for (const StorageHandle handle : handles) engine_->Drop(handle);
}

TEST_F(BatchTest, AReloadWaitsForCompanyNoLongerThanToTheNextCall) {
  Start();
  PutSmall(3);
  engine_->TakeReleasable(0, nullptr);
  std::vector<StorageHandle> due = engine_->NextToPrefetch();
  std::vector<char> back;
  Fetch(due[0], &back, true);
  engine_->NextToPrefetch();
  EXPECT_THAT(device_.batches(), ElementsAre("out/peer 3", "in/peer 1"));
  // And none at all where nobody said that others follow.
  engine_->Drop(due[2]);
  due = engine_->NextToPrefetch();
  ASSERT_EQ(due.size(), 1u);
  std::vector<char> alone;
  Fetch(due[0], &alone, true);
  device_.StepUntilIdle();
  EXPECT_EQ(alone, *sources_[1]);
}

TEST_F(BatchTest, ADropLeavesNoReloadThatWouldWriteLater) {
  Start();
  PutSmall(2);
  engine_->TakeReleasable(0, nullptr);
  const std::vector<StorageHandle> due = engine_->NextToPrefetch();
  std::vector<char> back;
  Fetch(due[0], &back, true);
  engine_->Drop(due[0]);
  EXPECT_EQ(back, *sources_[1]) << "over before the caller frees its buffer";
}

TEST_F(BatchTest, ALargeReloadIsNotOvertakenAndOvertakesNobody) {
  Start();
  const StorageHandle a = Put(kSmall);
  const StorageHandle large = Put(kLarge);
  const StorageHandle b = Put(kSmall);
  engine_->TakeReleasable(0, nullptr);
  const std::vector<StorageHandle> due = engine_->NextToPrefetch();
  ASSERT_THAT(due, ElementsAre(b, large, a));
  std::vector<std::vector<char>> back(3);
  Fetch(due[0], &back[0], true);
  Fetch(due[1], &back[1], true);
  EXPECT_EQ(device_.batches().back(), "in/peer 1");
  Fetch(due[2], &back[2], true);
  for (const StorageHandle handle : due) ASSERT_TRUE(engine_->Wait(handle, nullptr).ok());
  device_.StepUntilIdle();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(back[i], *sources_[2 - i]);
  for (const StorageHandle handle : due) engine_->Drop(handle);
}

TEST_F(BatchTest, NamesSmallReloadsOnlyWhereThereIsRoomForCompany) {
  Start();
  const std::vector<StorageHandle> handles = PutSmall(100);
  engine_->TakeReleasable(0, nullptr);
  std::vector<std::vector<char>> back;
  back.reserve(handles.size());
  std::vector<StorageHandle> ahead = engine_->NextToPrefetch();
  EXPECT_EQ(ahead.size(), 64u);
  for (const StorageHandle handle : ahead) Fetch(handle, &back.emplace_back(), true);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_THAT(engine_->NextToPrefetch(), IsEmpty()) << "three quarters of the limit are ahead";
    ASSERT_TRUE(engine_->Wait(ahead[i], nullptr).ok());
    engine_->Drop(ahead[i]);
  }
  EXPECT_EQ(engine_->NextToPrefetch().size(), 16u);
  device_.StepUntilIdle();  // Into buffers that go now.
}

TEST_F(BatchTest, TellsOfACopyThatFailedWhereItsBytesAreWanted) {
  Start();
  const std::vector<StorageHandle> handles = PutSmall(2);
  device_.FailNextCopyAll(absl::InternalError("the GPU is on fire"));
  EXPECT_THAT(engine_->TakeReleasable(0, nullptr), testing::ElementsAreArray(handles))
      << "nobody reads the sources any more";
  std::vector<char> back(kSmall);
  for (const StorageHandle handle : handles) {
    const absl::Status status = engine_->Fetch(handle, back.data(), false, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("the GPU is on fire"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("of block 0"));
    engine_->Drop(handle);
  }
  EXPECT_TRUE(engine_->Quiesce().ok());
}

TEST_F(BatchTest, TellsOfAReloadThatFailedWhereItIsWaitedFor) {
  Start();
  PutSmall(2);
  engine_->TakeReleasable(0, nullptr);
  const std::vector<StorageHandle> due = engine_->NextToPrefetch();
  std::vector<std::vector<char>> back(2);
  Fetch(due[0], &back[0], true);
  device_.FailNextCopyAll(absl::InternalError("the GPU is on fire"));
  Fetch(due[1], &back[1], true);
  for (const StorageHandle handle : due) {
    EXPECT_EQ(engine_->Wait(handle, nullptr).code(), absl::StatusCode::kInternal);
    engine_->Drop(handle);
  }
  EXPECT_TRUE(engine_->Quiesce().ok());
}

TEST_F(BatchTest, AnEngineThatGoesCopiesNothingMore) {
  Start();
  PutSmall(2);
  engine_.reset();  // The program frees its sources now.
  EXPECT_THAT(device_.batches(), IsEmpty());
}

}  // namespace
}  // namespace hyperframes
