// The learned order of consumption, as the engine follows it.
#include <memory>
#include <utility>
#include <vector>

#include "agent/engine/frame_engine.h"
#include "agent/engine/manual_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Bytes kBytes = 512;

class PrefetchTest : public testing::Test {
 protected:
  void Start(Bytes prefetch_limit) {
    FrameEngineOptions options;
    options.prefetch_limit = prefetch_limit;
    EngineArena arena;
    arena.tier = Tier::kPeer;
    arena.memory = device_.Allocate(64 * kBytes).value();
    std::vector<EngineArena> arenas;
    arenas.push_back(std::move(arena));
    engine_ = FrameEngine::Create(&device_, std::move(arenas), options).value();
  }

  // Puts storages with these ordinals; the handles by ordinal.
  void Forward(const std::vector<int>& ordinals, Bytes bytes = kBytes) {
    for (const int ordinal : ordinals) {
      StorageKey key;
      key.ordinal = ordinal;
      handles_[ordinal] =
          engine_->Put(key, source_.data(), bytes, Tier::kPeer, "", -1, nullptr).value().handle;
    }
    engine_->TakeReleasable(0, nullptr);
  }

  void Fetch(int ordinal, bool is_prefetch) {
    ASSERT_TRUE(engine_->Fetch(handles_[ordinal], buffer_.data(), is_prefetch, nullptr).ok());
  }

  void Consume(int ordinal) {
    ASSERT_TRUE(engine_->Wait(handles_[ordinal], nullptr).ok());
    engine_->Drop(handles_[ordinal]);
  }

  void Backward(const std::vector<int>& ordinals) {
    for (const int ordinal : ordinals) {
      Fetch(ordinal, false);
      Consume(ordinal);
    }
    ASSERT_TRUE(engine_->Quiesce().ok());
  }

  std::vector<int> Next() {
    std::vector<int> ordinals;
    for (const StorageHandle handle : engine_->NextToPrefetch()) {
      for (int i = 0; i < 16; ++i) {
        if (handles_[i] == handle) ordinals.push_back(i);
      }
    }
    return ordinals;
  }

  ManualDevice device_{ManualDevice::Compute::kBlocking};
  std::vector<char> source_ = std::vector<char>(64 * kBytes, 's');
  std::vector<char> buffer_ = std::vector<char>(64 * kBytes);
  StorageHandle handles_[16] = {};
  std::unique_ptr<FrameEngine> engine_;
};

TEST_F(PrefetchTest, BeforeAnOrderIsKnownItIsReversePutOrder) {
  Start(/*prefetch_limit=*/2 * kBytes);
  Forward({0, 1, 2, 3});
  EXPECT_THAT(Next(), ElementsAre(3, 2));
  Backward({3, 2, 1, 0});
}

TEST_F(PrefetchTest, FollowsTheOrderOfTheLastStep) {
  Start(/*prefetch_limit=*/3 * kBytes);
  Forward({0, 1, 2, 3});
  Backward({2, 0, 3, 1});
  Forward({0, 1, 2, 3});
  EXPECT_THAT(Next(), ElementsAre(2, 0, 3));
  Backward({2, 0, 3, 1});
}

TEST_F(PrefetchTest, MovesOnAsStoragesAreConsumedAndCountsHitsAndMisses) {
  Start(/*prefetch_limit=*/2 * kBytes);
  Forward({0, 1, 2, 3});
  Backward({3, 2, 1, 0});
  EXPECT_EQ(engine_->stats().prefetch_misses, 4);
  Forward({0, 1, 2, 3});
  EXPECT_THAT(Next(), ElementsAre(3, 2));
  Fetch(3, true);
  EXPECT_THAT(Next(), ElementsAre(2));
  Fetch(2, true);
  EXPECT_THAT(Next(), IsEmpty()) << "the limit is reached";
  Consume(3);
  EXPECT_THAT(Next(), ElementsAre(1));
  Consume(2);
  Backward({1, 0});
  EXPECT_EQ(engine_->stats().prefetch_hits, 2);
  EXPECT_EQ(engine_->stats().prefetch_misses, 6);
}

TEST_F(PrefetchTest, FollowsANewPlansLimit) {
  Start(/*prefetch_limit=*/kBytes);
  Forward({0, 1, 2, 3});
  EXPECT_THAT(Next(), ElementsAre(3));
  ASSERT_TRUE(engine_->SetLimits(kBytes, 3 * kBytes).ok());
  EXPECT_THAT(Next(), ElementsAre(3, 2, 1));
  EXPECT_EQ(engine_->SetLimits(kBytes, -1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Next(), ElementsAre(3, 2, 1)) << "a refused limit changes nothing";
  Backward({3, 2, 1, 0});
}

TEST_F(PrefetchTest, KeepsRoomForWhatIsPutInTheMiddleOfBackward) {
  Start(/*prefetch_limit=*/2 * kBytes);
  // Block 1 reads its input, makes 2 and 3 again and reads them; then the input of block 0.
  Forward({0, 1});
  Fetch(1, false);
  Consume(1);
  Forward({2, 3});
  Backward({3, 2, 0});

  Forward({0, 1});
  EXPECT_THAT(Next(), ElementsAre(1));
  Fetch(1, true);
  EXPECT_THAT(Next(), IsEmpty()) << "2 and 3 will come before 0";
  Consume(1);
  EXPECT_THAT(Next(), IsEmpty());
  Forward({2, 3});
  EXPECT_THAT(Next(), ElementsAre(3, 2));
  Backward({3, 2, 0});

  ASSERT_TRUE(engine_->SetLimits(kBytes, 3 * kBytes).ok());
  Forward({0, 1});
  Fetch(1, false);
  Consume(1);
  EXPECT_THAT(Next(), ElementsAre(0)) << "there is room for all three";
  Forward({2, 3});
  Backward({3, 2, 0});
}

TEST_F(PrefetchTest, TakesAStorageLargerThanTheLimitWhenNothingElseIsAhead) {
  Start(/*prefetch_limit=*/kBytes);
  Forward({0, 1}, /*bytes=*/4 * kBytes);
  EXPECT_THAT(Next(), ElementsAre(1));
  Fetch(1, true);
  EXPECT_THAT(Next(), IsEmpty());
  Consume(1);
  Backward({0});
}

TEST_F(PrefetchTest, SkipsWhatThisStepDoesNotHaveAndReloadsWhatIsNewOnDemand) {
  Start(/*prefetch_limit=*/8 * kBytes);
  Forward({0, 1, 2, 3});
  Backward({3, 2, 1, 0});
  Forward({0, 2, 9});  // Blocks 1 and 3 were skipped, 9 is new.
  EXPECT_THAT(Next(), ElementsAre(2, 0));
  Fetch(9, false);
  Consume(9);
  EXPECT_THAT(Next(), ElementsAre(2, 0)) << "a key that is not in the order changes nothing";
  Backward({2, 0});
  Forward({0, 2, 9});
  EXPECT_THAT(Next(), ElementsAre(9, 2, 0)) << "and is learned";
  Backward({9, 2, 0});
}

TEST_F(PrefetchTest, GoesOnBehindTheStorageThatWasConsumedOutOfOrder) {
  Start(/*prefetch_limit=*/8 * kBytes);
  Forward({0, 1, 2, 3});
  Backward({3, 2, 1, 0});
  Forward({0, 1, 2, 3});
  Fetch(2, false);
  Consume(2);
  EXPECT_THAT(Next(), ElementsAre(1, 0));
  Backward({3, 1, 0});
}

TEST_F(PrefetchTest, KeepsItsOrderOverAStepThatFailedOrOnlyEvaluated) {
  Start(/*prefetch_limit=*/8 * kBytes);
  Forward({0, 1, 2, 3});
  Backward({1, 0, 3, 2});
  Forward({0, 1, 2, 3});  // An exception: everything is dropped after one consumption.
  Fetch(0, false);
  Consume(0);
  for (const int ordinal : {1, 2, 3}) engine_->Drop(handles_[ordinal]);
  ASSERT_TRUE(engine_->Quiesce().ok());
  ASSERT_TRUE(engine_->Quiesce().ok());  // An evaluation puts nothing.
  Forward({0, 1, 2, 3});
  EXPECT_THAT(Next(), ElementsAre(1, 0, 3, 2));
  Backward({1, 0, 3, 2});
}

TEST_F(PrefetchTest, ARefusedQuiescentPointChangesNothing) {
  Start(/*prefetch_limit=*/8 * kBytes);
  Forward({0, 1});
  Fetch(0, false);
  Consume(0);
  EXPECT_FALSE(engine_->Quiesce().ok());
  Backward({1});
  Forward({0, 1});
  EXPECT_THAT(Next(), ElementsAre(0, 1));
  Backward({0, 1});
}

TEST_F(PrefetchTest, DroppingAPrefetchedStorageMakesRoomAgain) {
  Start(/*prefetch_limit=*/kBytes);
  Forward({0, 1});
  Fetch(1, true);
  EXPECT_THAT(Next(), IsEmpty());
  engine_->Drop(handles_[1]);
  EXPECT_THAT(Next(), ElementsAre(0));
  Backward({0});
}

TEST_F(PrefetchTest, AStorageReadTwiceIsLearnedOnce) {
  Start(/*prefetch_limit=*/8 * kBytes);
  Forward({0, 1});
  for (int i = 0; i < 2; ++i) {
    Fetch(1, false);
    ASSERT_TRUE(engine_->Wait(handles_[1], nullptr).ok());
  }
  engine_->Drop(handles_[1]);
  Backward({0});
  Forward({0, 1});
  EXPECT_THAT(Next(), ElementsAre(1, 0));
  Backward({1, 0});
}

}  // namespace
}  // namespace hyperframes
