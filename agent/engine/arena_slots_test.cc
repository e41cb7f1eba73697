#include "agent/engine/arena_slots.h"

#include <memory>
#include <utility>
#include <vector>

#include "agent/device/host/host_device.h"
#include "agent/device/host/host_event.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr Bytes kUnit = kSlotAlignment;
using Events = std::vector<std::shared_ptr<const Event>>;

ArenaSlots Slots(Bytes bytes) {
  HostDeviceOptions options;
  options.uuid = "SIM-test-0";
  options.total_bytes = bytes;
  EngineArena arena;
  arena.memory = HostDevice::Create(options).value()->Allocate(bytes).value();
  return ArenaSlots(std::move(arena));
}

TEST(ArenaSlots, NamesTheReloadsThatStillReadAReusedRange) {
  ArenaSlots slots = Slots(4 * kUnit);
  Events before_write;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(slots.Allocate(kUnit, -1, &before_write).ok());
  const auto first = std::make_shared<HostEvent>();
  const auto second = std::make_shared<HostEvent>();
  slots.Free(0, kUnit, first);
  slots.Free(kUnit, kUnit, second);
  slots.Free(3 * kUnit, kUnit, nullptr);
  EXPECT_EQ(slots.Allocate(kUnit, 3 * kUnit, &before_write).value(), 3 * kUnit);
  EXPECT_THAT(before_write, IsEmpty()) << "nobody reads there";
  EXPECT_EQ(slots.Allocate(2 * kUnit, -1, &before_write).value(), 0);
  EXPECT_THAT(before_write, UnorderedElementsAre(first, second)) << "it covers both";
}

TEST(ArenaSlots, StillKnowsAReadBehindASlotThatCoveredOnlyItsFirstHalf) {
  ArenaSlots slots = Slots(2 * kUnit);
  Events before_write;
  ASSERT_TRUE(slots.Allocate(2 * kUnit, -1, &before_write).ok());
  const auto read = std::make_shared<HostEvent>();
  slots.Free(0, 2 * kUnit, read);
  ASSERT_TRUE(slots.Allocate(kUnit, 0, &before_write).ok());
  before_write.clear();
  ASSERT_TRUE(slots.Allocate(kUnit, kUnit, &before_write).ok());
  EXPECT_THAT(before_write, ElementsAre(read));
}

TEST(ArenaSlots, ForgetsReloadsThatAreOver) {
  ArenaSlots slots = Slots(kUnit);
  Events before_write;
  ASSERT_TRUE(slots.Allocate(kUnit, -1, &before_write).ok());
  const auto read = std::make_shared<HostEvent>();
  slots.Free(0, kUnit, read);
  read->Set();
  ASSERT_TRUE(slots.Allocate(kUnit, -1, &before_write).ok());
  EXPECT_THAT(before_write, IsEmpty());
  EXPECT_EQ(read.use_count(), 1) << "bounded: nothing is kept of it";
}

class Counted final : public Event {
 public:
  explicit Counted(int* asked) : asked_(asked) {}
  bool Done() const override {
    ++*asked_;
    return false;
  }
  void Synchronize() const override {}

 private:
  int* const asked_;
};

// Each look at an event is a call of the driver, and a program that is far ahead of its GPU has
// hundreds of reloads under way.
TEST(ArenaSlots, LooksAtNoMoreEventsTheMoreReloadsAreUnderWay) {
  constexpr int kSlots = 300;
  ArenaSlots slots = Slots(kSlots * kUnit);
  Events before_write;
  for (int i = 0; i < kSlots; ++i) ASSERT_TRUE(slots.Allocate(kUnit, -1, &before_write).ok());
  int asked = 0;
  for (int i = 0; i < kSlots; ++i) slots.Free(i * kUnit, kUnit, std::make_shared<Counted>(&asked));
  EXPECT_LE(asked, 2 * kSlots);
  asked = 0;
  for (int i = 0; i < kSlots; ++i) ASSERT_TRUE(slots.Allocate(kUnit, -1, &before_write).ok());
  EXPECT_LE(asked, kSlots);
  EXPECT_EQ(before_write.size(), static_cast<size_t>(kSlots));
}

}  // namespace
}  // namespace hyperframes
