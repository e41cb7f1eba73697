#include "agent/engine/stash.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Stash, NamesTheOldestWhileMoreThanTheLimitIsUnwaited) {
  Stash stash;
  stash.Add(1, 100, nullptr);
  stash.Add(2, 100, nullptr);
  Stash::Entry oldest;
  EXPECT_FALSE(stash.OldestUnwaited(200, /*spare_newest=*/false, &oldest));
  ASSERT_TRUE(stash.OldestUnwaited(199, /*spare_newest=*/false, &oldest));
  EXPECT_EQ(oldest.handle, 1);
  stash.MarkWaited(1);
  EXPECT_FALSE(stash.OldestUnwaited(100, /*spare_newest=*/false, &oldest));
  ASSERT_TRUE(stash.OldestUnwaited(0, /*spare_newest=*/false, &oldest));
  EXPECT_EQ(oldest.handle, 2);
}

TEST(Stash, SparesOneStorageThatIsLargerThanTheLimit) {
  Stash stash;
  stash.Add(1, 1000, nullptr);
  Stash::Entry oldest;
  EXPECT_FALSE(stash.OldestUnwaited(10, /*spare_newest=*/true, &oldest));
  EXPECT_TRUE(stash.OldestUnwaited(10, /*spare_newest=*/false, &oldest));
  stash.Add(2, 1, nullptr);
  ASSERT_TRUE(stash.OldestUnwaited(10, /*spare_newest=*/true, &oldest));
  EXPECT_EQ(oldest.handle, 1);
}

TEST(Stash, GivesBackInPutOrderWhateverTheOrderOfWaiting) {
  Stash stash;
  for (const StorageHandle handle : {1, 2, 3}) stash.Add(handle, 10, nullptr);
  stash.MarkWaited(2);
  EXPECT_THAT(stash.TakeWaited(), IsEmpty()) << "the first is still held";
  stash.MarkWaited(1);
  EXPECT_THAT(stash.TakeWaited(), ElementsAre(1, 2));
  EXPECT_THAT(stash.TakeWaited(), IsEmpty()) << "each once";
  EXPECT_EQ(stash.held_bytes(), 10);
  stash.MarkWaited(3);
  EXPECT_THAT(stash.TakeWaited(), ElementsAre(3));
  EXPECT_EQ(stash.held_bytes(), 0);
}

TEST(Stash, TakesASecondWaitForTheSameSourceCalmly) {
  Stash stash;
  stash.Add(5, 10, nullptr);
  stash.MarkWaited(5);
  stash.MarkWaited(5);
  stash.MarkWaited(4);
  stash.MarkWaited(6);
  EXPECT_THAT(stash.TakeWaited(), ElementsAre(5));
  stash.MarkWaited(5);
  Stash::Entry oldest;
  EXPECT_FALSE(stash.OldestUnwaited(0, /*spare_newest=*/false, &oldest));
  EXPECT_EQ(stash.held_bytes(), 0);
}

TEST(Stash, LetsACompanyGoTogetherAndNobodyElse) {
  Stash stash;
  stash.Add(1, 10, nullptr, /*company=*/7);
  stash.Add(2, 10, nullptr, 7);
  stash.Add(3, 10, nullptr, 8);
  stash.Add(4, 10, nullptr);
  stash.Add(5, 10, nullptr);
  stash.MarkWaited(1);
  EXPECT_THAT(stash.TakeWaited(), ElementsAre(1, 2));
  stash.MarkWaited(4);
  EXPECT_THAT(stash.TakeWaited(), IsEmpty()) << "3 is another company, 5 is alone";
  Stash::Entry oldest;
  ASSERT_TRUE(stash.OldestUnwaited(10, /*spare_newest=*/false, &oldest));
  EXPECT_EQ(oldest.handle, 3);
  EXPECT_FALSE(stash.OldestUnwaited(20, false, &oldest)) << "30 held, 10 of them waited for";
}

TEST(Stash, LearnsTheEventOfACopyThatStartsLater) {
  class DoneEvent final : public Event {
   public:
    bool Done() const override { return true; }
    void Synchronize() const override {}
  };
  const std::shared_ptr<const Event> event = std::make_shared<DoneEvent>();
  Stash stash;
  stash.Add(1, 10, nullptr, /*company=*/7);
  stash.SetCopiedOut(1, event);
  stash.SetCopiedOut(2, event);  // Never came here.
  Stash::Entry oldest;
  ASSERT_TRUE(stash.OldestUnwaited(0, false, &oldest));
  EXPECT_EQ(oldest.copied_out, event);
  stash.MarkWaited(1);
  oldest = {};
  stash.SetCopiedOut(1, event);
  EXPECT_EQ(event.use_count(), 1) << "what was waited for keeps no event";
}

}  // namespace
}  // namespace hyperframes
