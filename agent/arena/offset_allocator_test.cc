#include "agent/arena/offset_allocator.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

constexpr Bytes kUnit = kSlotAlignment;

TEST(OffsetAllocator, RoundsSlotsUpToTheAlignment) {
  OffsetAllocator allocator(8 * kUnit);
  EXPECT_EQ(allocator.Allocate(1).value(), 0);
  EXPECT_EQ(allocator.Allocate(kUnit + 1).value(), kUnit);
  EXPECT_EQ(allocator.used(), 3 * kUnit);
  EXPECT_EQ(allocator.largest_free(), 5 * kUnit);
}

TEST(OffsetAllocator, NeverUsesATailShorterThanTheAlignment) {
  OffsetAllocator allocator(2 * kUnit + 100);
  EXPECT_EQ(allocator.capacity(), 2 * kUnit);
  EXPECT_TRUE(allocator.Allocate(2 * kUnit).ok());
  EXPECT_EQ(allocator.Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(OffsetAllocator, TakesTheSmallestRangeThatFits) {
  OffsetAllocator allocator(16 * kUnit);
  const Bytes large = allocator.Allocate(4 * kUnit).value();
  ASSERT_TRUE(allocator.Allocate(kUnit).ok());
  const Bytes small = allocator.Allocate(2 * kUnit).value();
  ASSERT_TRUE(allocator.Allocate(kUnit).ok());
  ASSERT_TRUE(allocator.Free(large).ok());
  ASSERT_TRUE(allocator.Free(small).ok());
  EXPECT_EQ(allocator.Allocate(2 * kUnit).value(), small);
}

TEST(OffsetAllocator, TakesTheLowestOfEqualRanges) {
  OffsetAllocator allocator(5 * kUnit);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(allocator.Allocate(kUnit).ok());
  ASSERT_TRUE(allocator.Free(3 * kUnit).ok());
  ASSERT_TRUE(allocator.Free(1 * kUnit).ok());
  EXPECT_EQ(allocator.Allocate(kUnit).value(), kUnit);
}

TEST(OffsetAllocator, UsesThePreferredOffsetWhenItIsFree) {
  OffsetAllocator allocator(8 * kUnit);
  EXPECT_EQ(allocator.Allocate(2 * kUnit, 4 * kUnit).value(), 4 * kUnit);
  EXPECT_EQ(allocator.Allocate(2 * kUnit, 6 * kUnit).value(), 6 * kUnit);
}

TEST(OffsetAllocator, IgnoresAPreferenceThatIsTakenUnalignedOrOutside) {
  OffsetAllocator allocator(8 * kUnit);
  ASSERT_EQ(allocator.Allocate(kUnit, 0).value(), 0);
  EXPECT_EQ(allocator.Allocate(kUnit, 0).value(), kUnit);
  EXPECT_EQ(allocator.Allocate(kUnit, 5 * kUnit + 1).value(), 2 * kUnit);
  EXPECT_EQ(allocator.Allocate(kUnit, 800 * kUnit).value(), 3 * kUnit);
  EXPECT_EQ(allocator.Allocate(2 * kUnit, 7 * kUnit).value(), 4 * kUnit) << "crosses the end";
  const Bytes far = std::numeric_limits<Bytes>::max() / kUnit * kUnit;
  EXPECT_EQ(allocator.Allocate(kUnit, far).value(), 6 * kUnit);
}

TEST(OffsetAllocator, JoinsNeighboursWhenTheyAreFreed) {
  OffsetAllocator allocator(3 * kUnit);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(allocator.Allocate(kUnit).ok());
  ASSERT_TRUE(allocator.Free(0).ok());
  ASSERT_TRUE(allocator.Free(2 * kUnit).ok());
  EXPECT_EQ(allocator.largest_free(), kUnit);
  ASSERT_TRUE(allocator.Free(kUnit).ok());
  EXPECT_EQ(allocator.largest_free(), 3 * kUnit);
  EXPECT_EQ(allocator.used(), 0);
}

TEST(OffsetAllocator, RefusesADoubleFreeAndAForeignOffset) {
  OffsetAllocator allocator(4 * kUnit);
  const Bytes slot = allocator.Allocate(2 * kUnit).value();
  ASSERT_TRUE(allocator.Free(slot).ok());
  EXPECT_EQ(allocator.Free(slot).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(allocator.Free(kUnit).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(allocator.Free(-1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(allocator.largest_free(), 4 * kUnit);
}

TEST(OffsetAllocator, RefusesSizesThatMakeNoSense) {
  OffsetAllocator allocator(4 * kUnit);
  EXPECT_EQ(allocator.Allocate(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(allocator.Allocate(-5).status().code(), absl::StatusCode::kInvalidArgument);
  const auto huge = allocator.Allocate(std::numeric_limits<Bytes>::max());
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(huge.status().message()), testing::HasSubstr("largest is 2048"));
}

TEST(OffsetAllocator, OfZeroBytesGivesNothing) {
  for (const Bytes capacity : {Bytes{0}, Bytes{-1}, kUnit - 1}) {
    OffsetAllocator allocator(capacity);
    EXPECT_EQ(allocator.capacity(), 0);
    EXPECT_EQ(allocator.largest_free(), 0);
    EXPECT_EQ(allocator.Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

// One flag per unit: too slow to use, too simple to be wrong.
class NaiveModel {
 public:
  explicit NaiveModel(int units) : taken_(units, false) {}

  // Best fit by looking at every free run. -1: none.
  int Allocate(int units, int preferred) {
    if (preferred >= 0 && preferred + units <= Size() && IsFree(preferred, units)) {
      return Mark(preferred, units, true);
    }
    int best = -1;
    int best_length = 0;
    for (int begin = 0; begin < Size();) {
      int length = 0;
      while (begin + length < Size() && !taken_[begin + length]) ++length;
      if (length >= units && (best < 0 || length < best_length)) {
        best = begin;
        best_length = length;
      }
      begin += std::max(length, 1);
    }
    return best < 0 ? -1 : Mark(best, units, true);
  }
  void Free(int begin, int units) { Mark(begin, units, false); }
  int LargestFree() const {
    int largest = 0;
    int length = 0;
    for (const bool taken : taken_) {
      length = taken ? 0 : length + 1;
      largest = std::max(largest, length);
    }
    return largest;
  }
  int Used() const { return std::count(taken_.begin(), taken_.end(), true); }

 private:
  int Size() const { return taken_.size(); }
  bool IsFree(int begin, int units) const {
    return std::none_of(taken_.begin() + begin, taken_.begin() + begin + units,
                        [](bool taken) { return taken; });
  }
  int Mark(int begin, int units, bool taken) {
    std::fill(taken_.begin() + begin, taken_.begin() + begin + units, taken);
    return begin;
  }

  std::vector<bool> taken_;
};

TEST(OffsetAllocator, AgreesWithANaiveModelOverRandomHistories) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const int units = 1 + random() % 96;
    OffsetAllocator allocator(units * kUnit);
    NaiveModel model(units);
    std::vector<std::pair<int, int>> live;  // Begin and length, in units.
    for (int step = 0; step < 2000; ++step) {
      if (live.empty() || random() % 100 < 55) {
        const int length = 1 + random() % 12;
        const int preferred = random() % 2 == 0 ? -1 : static_cast<int>(random() % units);
        const Bytes bytes = length * kUnit - random() % kUnit;
        const auto offset = allocator.Allocate(bytes, preferred < 0 ? -1 : preferred * kUnit);
        const int expected = model.Allocate(length, preferred);
        ASSERT_EQ(offset.ok() ? *offset / kUnit : -1, expected) << "seed " << seed << " " << step;
        if (expected >= 0) live.emplace_back(expected, length);
      } else {
        const size_t victim = random() % live.size();
        ASSERT_TRUE(allocator.Free(live[victim].first * kUnit).ok());
        model.Free(live[victim].first, live[victim].second);
        live.erase(live.begin() + victim);
      }
      ASSERT_EQ(allocator.used(), model.Used() * kUnit);
      ASSERT_EQ(allocator.largest_free(), model.LargestFree() * kUnit);
    }
  }
}

}  // namespace
}  // namespace hyperframes
