#include "agent/engine/open_batch.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DoneEvent final : public Event {
 public:
  bool Done() const override { return true; }
  void Synchronize() const override {}
};

CopyPart Part(Bytes bytes) { return {nullptr, nullptr, bytes}; }

TEST(OpenBatch, CallsSmallWhatFindsCompanyUnderTheLimit) {
  EXPECT_TRUE(OpenBatch::IsSmall(kMiB, /*largest=*/kMiB, /*limit=*/kGiB));
  EXPECT_FALSE(OpenBatch::IsSmall(kMiB + 1, kMiB, kGiB));
  EXPECT_FALSE(OpenBatch::IsSmall(1, /*largest=*/0, kGiB)) << "packing is off";
  // Under a small limit only what leaves three quarters of it to others.
  EXPECT_TRUE(OpenBatch::IsSmall(512, kMiB, /*limit=*/4096));
  EXPECT_FALSE(OpenBatch::IsSmall(513, kMiB, 4096));
  EXPECT_FALSE(OpenBatch::IsSmall(1, kMiB, /*limit=*/0));
}

TEST(OpenBatch, TakesOneArenaOneRoomAndABoundedNumber) {
  OpenBatch batch;
  EXPECT_TRUE(batch.Takes(/*arena=*/3, /*bytes=*/100, /*room=*/10)) << "the first always";
  batch.Add(1, 3, Part(60), nullptr);
  EXPECT_TRUE(batch.Takes(3, 40, /*room=*/100));
  EXPECT_FALSE(batch.Takes(3, 41, 100));
  EXPECT_FALSE(batch.Takes(2, 40, 100));
  EXPECT_FALSE(batch.IsFull(100));
  EXPECT_TRUE(batch.IsFull(60));
  for (size_t i = 1; i < OpenBatch::kMostParts; ++i) batch.Add(1 + i, 3, Part(1), nullptr);
  EXPECT_FALSE(batch.Takes(3, 1, kGiB));
  EXPECT_TRUE(batch.IsFull(kGiB));
}

TEST(OpenBatch, KnowsWhatItHoldsUntilItIsCleared) {
  OpenBatch batch;
  const uint64_t number = batch.number();
  EXPECT_NE(number, 0u);
  batch.Add(7, 0, Part(1), nullptr);
  EXPECT_TRUE(batch.Holds(7));
  EXPECT_FALSE(batch.Holds(8));
  batch.Clear();
  EXPECT_FALSE(batch.Holds(7));
  EXPECT_TRUE(batch.empty());
  EXPECT_NE(batch.number(), number);
  batch.Add(8, 1, Part(5), nullptr);
  EXPECT_TRUE(batch.Takes(1, 5, /*room=*/10)) << "the bytes of the last one are forgotten";
  EXPECT_THAT(batch.start_after(), IsEmpty());
}

TEST(OpenBatch, NamesEachStreamOnceAndSharedEventsOnce) {
  OpenBatch batch;
  int other = 0;
  batch.Add(1, 0, Part(1), nullptr);
  batch.Add(2, 0, Part(1), &other);
  batch.Add(3, 0, Part(1), nullptr);
  EXPECT_THAT(batch.compute_streams(), ElementsAre(nullptr, &other));
  const auto event = std::make_shared<DoneEvent>();
  const auto next = std::make_shared<DoneEvent>();
  batch.StartAfter(nullptr);
  batch.StartAfter(event);
  batch.StartAfter(event);
  batch.StartAfter(next);
  EXPECT_THAT(batch.start_after(), ElementsAre(event, next));
}

}  // namespace
}  // namespace hyperframes
