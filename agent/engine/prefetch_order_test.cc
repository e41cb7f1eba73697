#include "agent/engine/prefetch_order.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

StorageKey Key(int ordinal) {
  StorageKey key;
  key.ordinal = ordinal;
  return key;
}

void Learn(PrefetchOrder* order, const std::vector<int>& ordinals) {
  for (const int ordinal : ordinals) order->Consumed(Key(ordinal));
  order->FinishStep(ordinals.size());
}

std::vector<int> Ahead(const PrefetchOrder& order) {
  std::vector<int> ordinals;
  for (const StorageKey& key : order) ordinals.push_back(key.ordinal);
  return ordinals;
}

TEST(PrefetchOrder, KnowsNothingBeforeTheFirstStep) {
  PrefetchOrder order;
  EXPECT_FALSE(order.has_learned());
  EXPECT_THAT(Ahead(order), IsEmpty());
  order.Consumed(Key(1));
  EXPECT_FALSE(order.has_learned()) << "a step must end first";
}

TEST(PrefetchOrder, MovesBehindEachKeyThatIsConsumed) {
  PrefetchOrder order;
  Learn(&order, {4, 3, 2, 1});
  EXPECT_THAT(Ahead(order), ElementsAre(4, 3, 2, 1));
  order.Consumed(Key(4));
  EXPECT_THAT(Ahead(order), ElementsAre(3, 2, 1));
  order.Consumed(Key(2));
  EXPECT_THAT(Ahead(order), ElementsAre(1));
  order.Consumed(Key(3));
  EXPECT_THAT(Ahead(order), ElementsAre(1)) << "late ones do not turn the position back";
  order.Consumed(Key(99));
  EXPECT_THAT(Ahead(order), ElementsAre(1));
}

TEST(PrefetchOrder, StartsAgainWithEachStepAndLearnsTheLatest) {
  PrefetchOrder order;
  Learn(&order, {1, 2, 3});
  Learn(&order, {3, 1});
  EXPECT_THAT(Ahead(order), ElementsAre(3, 1));
}

TEST(PrefetchOrder, KnowsWhatIsPutInTheMiddleOfConsumption) {
  PrefetchOrder order;
  const auto step = [&order](Bytes late_bytes) {
    order.Put(Key(1), 10);
    order.Put(Key(2), 10);
    order.Consumed(Key(2));
    order.Put(Key(3), late_bytes);
    order.Consumed(Key(3));
    order.Consumed(Key(1));
    order.FinishStep(/*puts=*/3);
  };
  step(30);
  EXPECT_EQ(order.BytesPutLate(Key(3)), 30);
  EXPECT_EQ(order.BytesPutLate(Key(1)), 0);
  EXPECT_EQ(order.BytesPutLate(Key(2)), 0);
  step(40);
  EXPECT_EQ(order.BytesPutLate(Key(3)), 40);
  order.Put(Key(3), 10);
  order.Consumed(Key(3));
  order.FinishStep(/*puts=*/1);
  EXPECT_EQ(order.BytesPutLate(Key(3)), 0) << "it was put before all consumption";
}

TEST(PrefetchOrder, ForgetsAStepOfWhichLessThanHalfWasConsumed) {
  PrefetchOrder order;
  Learn(&order, {1, 2, 3, 4});
  order.Consumed(Key(4));
  order.FinishStep(/*puts=*/3);
  EXPECT_THAT(Ahead(order), ElementsAre(1, 2, 3, 4));
  order.FinishStep(/*puts=*/0);
  EXPECT_THAT(Ahead(order), ElementsAre(1, 2, 3, 4));
  order.Consumed(Key(2));
  order.FinishStep(/*puts=*/2);
  EXPECT_THAT(Ahead(order), ElementsAre(2)) << "half is enough: not every output is used";
}

}  // namespace
}  // namespace hyperframes
