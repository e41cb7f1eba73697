// How fast a way to another node is found to be, from the traffic on it.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/transfer/network_table.h"
#include "agent/transfer/traffic_meter.h"

namespace hyperframes {
namespace {

constexpr double kRate = 100.0 * 1024 * 1024;  // Bytes per second.

class MeterOfTraffic : public testing::Test {
 protected:
  // One piece, alone on its lane.
  void Cross(Direction direction, Bytes bytes, absl::Duration takes) {
    Crossing piece(meter_, direction);
    clock_.Advance(takes);
    piece.Arrived(bytes);
  }

  FakeClock clock_;
  std::vector<TrafficWindow> told_;
  std::shared_ptr<TrafficMeter> meter_ = std::make_shared<TrafficMeter>(
      "b", &clock_, [this](const TrafficWindow& window) { told_.push_back(window); });
};

TEST_F(MeterOfTraffic, SaysNothingBeforeThereWasEnough) {
  Cross(Direction::kOut, kWindowBytes - 1, absl::Milliseconds(5));
  Cross(Direction::kIn, kWindowBytes - 1, absl::Milliseconds(5));
  EXPECT_TRUE(told_.empty()) << "directions are windows of their own";
  Cross(Direction::kOut, 1, absl::Milliseconds(1));
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].bytes, kWindowBytes);
  EXPECT_EQ(told_[0].direction, Direction::kOut);
  EXPECT_EQ(told_[0].node, "b");
}

TEST_F(MeterOfTraffic, ASlowWayFillsAWindowByTime) {
  Cross(Direction::kIn, 4096, kWindowBusy / 2);
  EXPECT_TRUE(told_.empty());
  Cross(Direction::kIn, 4096, kWindowBusy / 2);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].bytes, 8192);
  EXPECT_EQ(told_[0].busy, kWindowBusy);
}

TEST_F(MeterOfTraffic, TimeWithNothingUnderWayIsNotBusy) {
  Cross(Direction::kOut, kWindowBytes / 2, absl::Milliseconds(10));
  clock_.Advance(absl::Seconds(7));  // The rest of the step.
  Cross(Direction::kOut, kWindowBytes / 2, absl::Milliseconds(10));
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].busy, absl::Milliseconds(20));
  EXPECT_EQ(told_[0].end - told_[0].begin, absl::Milliseconds(7020));
}

TEST_F(MeterOfTraffic, PiecesUnderWayTogetherShareTheTime) {
  Crossing first(meter_, Direction::kOut), second(meter_, Direction::kOut);
  clock_.Advance(absl::Milliseconds(10));
  first.Arrived(kWindowBytes / 2);
  clock_.Advance(absl::Milliseconds(10));
  second.Arrived(kWindowBytes / 2);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].busy, absl::Milliseconds(20)) << "and not 30";
}

TEST_F(MeterOfTraffic, AWindowThatEndsInTheMiddleOfAPieceBeginsTheNextOne) {
  Crossing first(meter_, Direction::kOut), second(meter_, Direction::kOut);
  clock_.Advance(absl::Milliseconds(10));
  first.Arrived(kWindowBytes);
  clock_.Advance(absl::Milliseconds(30));
  second.Arrived(kWindowBytes);
  ASSERT_EQ(told_.size(), 2u);
  EXPECT_EQ(told_[1].begin, told_[0].end);
  EXPECT_EQ(told_[1].busy, absl::Milliseconds(30));
  EXPECT_EQ(told_[1].bytes, kWindowBytes);
}

TEST_F(MeterOfTraffic, APieceThatIsGivenUpTakesItsWindowWithIt) {
  {
    Crossing lost(meter_, Direction::kOut);
    clock_.Advance(absl::Seconds(10));
  }
  EXPECT_TRUE(told_.empty()) << "a peer that is gone is no slow network";
  Cross(Direction::kOut, kWindowBytes, absl::Milliseconds(10));
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].busy, absl::Milliseconds(10));
}

TEST_F(MeterOfTraffic, MovedAndEmptyPiecesCountOnce) {
  Crossing piece(meter_, Direction::kOut);
  Crossing moved = std::move(piece);
  Crossing none, of_no_meter(nullptr, Direction::kOut);
  none = std::move(moved);
  clock_.Advance(absl::Milliseconds(1));
  none.Arrived(kWindowBytes);
  of_no_meter.Arrived(1);
  EXPECT_EQ(told_.size(), 1u);
}

TEST(TrafficWindowText, IsReadBackAndNothingElseIsBelieved) {
  TrafficWindow window;
  window.node = "gpu-17.rack_2";
  window.direction = Direction::kIn;
  window.bytes = 12345;
  window.busy = absl::Milliseconds(3);
  window.begin = absl::FromUnixNanos(1000);
  window.end = window.begin + absl::Milliseconds(4);
  const std::string line = WriteWindow(window);
  EXPECT_LT(line.size(), 256u);
  ASSERT_EQ(line.back(), '\n');
  const auto read = ReadWindow(line.substr(0, line.size() - 1));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(WriteWindow(*read), line);
  for (const char* wrong :
       {"", "window", "window b out 1 1 1", "window b out 1 1 1 2 3", "windows b out 1 1 1 2",
        "window b/c out 1 1 1 2", "window b up 1 1 1 2", "window b out -1 1 1 2",
        "window b out 1 0 1 2", "window b out 1 5 1 2", "window b out 1 1 3 2",
        "window b out 9223372036854775807 1 1 2", "window  out 1 1 1 2", "window b out x 1 1 2"}) {
    EXPECT_FALSE(ReadWindow(wrong).has_value()) << wrong;
  }
  EXPECT_TRUE(ReadWindow("window b out 1 1 1 2").has_value());
  EXPECT_FALSE(IsNodeName(std::string(64, 'a')));
}

class TableOfNetworks : public testing::Test {
 protected:
  // A window of kWindowBytes at `rate`, which ends now.
  TrafficWindow Window(double rate, const std::string& node = "b",
                       Direction direction = Direction::kOut) {
    TrafficWindow window;
    window.node = node;
    window.direction = direction;
    window.bytes = kWindowBytes;
    window.busy = absl::Seconds(static_cast<double>(kWindowBytes) / rate);
    window.begin = clock_.Now();
    clock_.Advance(window.busy);
    window.end = clock_.Now();
    return window;
  }
  void Add(int count, double rate, const std::string& node = "b",
           Direction direction = Direction::kOut) {
    for (int i = 0; i < count; ++i) table_.Add(Window(rate, node, direction));
  }
  double Rate() {
    const std::vector<NetworkFigure> figures = table_.Figures();
    return figures.size() == 1 ? figures[0].bytes_per_second : -1;
  }

  FakeClock clock_;
  NetworkTable table_{&clock_};
};

TEST_F(TableOfNetworks, AFigureNeedsWindowsOfOneDirection) {
  Add(2, kRate, "b", Direction::kOut);
  Add(2, kRate, "b", Direction::kIn);
  EXPECT_TRUE(table_.Figures().empty());
  Add(1, kRate, "b", Direction::kIn);
  EXPECT_NEAR(Rate(), kRate, 1);
}

TEST_F(TableOfNetworks, AStallDoesNotSpoilIt) {
  Add(4, kRate);
  Add(2, kRate / 1000);
  Add(4, kRate);
  EXPECT_NEAR(Rate(), kRate, 1);
}

TEST_F(TableOfNetworks, TheSlowerDirectionCounts) {
  Add(5, kRate, "b", Direction::kOut);
  Add(5, kRate / 4, "b", Direction::kIn);
  EXPECT_NEAR(Rate(), kRate / 4, 1);
}

TEST_F(TableOfNetworks, ItFollowsANetworkThatHasChangedForGood) {
  Add(NetworkTable::kWindowsKept, kRate);
  EXPECT_NEAR(Rate(), kRate, 1);
  Add(NetworkTable::kWindowsKept / 2 + 1, kRate / 10);
  EXPECT_NEAR(Rate(), kRate / 10, 1);
}

TEST_F(TableOfNetworks, ASmallChangeIsNotTold) {
  Add(NetworkTable::kWindowsKept, kRate);
  EXPECT_NEAR(Rate(), kRate, 1);
  Add(NetworkTable::kWindowsKept, kRate * 1.15);
  EXPECT_NEAR(Rate(), kRate, 1);
  Add(NetworkTable::kWindowsKept, kRate * 1.3);
  EXPECT_NEAR(Rate(), kRate * 1.3, 1);
}

TEST_F(TableOfNetworks, ProcessesThatShareAWayAddUp) {
  for (int i = 0; i < 4; ++i) {
    const TrafficWindow one = Window(kRate / 4);
    for (int process = 0; process < 4; ++process) table_.Add(one);
  }
  EXPECT_NEAR(Rate(), kRate, 1);
}

TEST_F(TableOfNetworks, TrafficToOthersAndInTheOtherDirectionDoesNotAddUp) {
  for (int i = 0; i < 4; ++i) {
    TrafficWindow window = Window(kRate);
    table_.Add(window);
    window.direction = Direction::kIn;
    table_.Add(window);
    window.node = "c";
    table_.Add(window);
  }
  const std::vector<NetworkFigure> figures = table_.Figures();
  ASSERT_EQ(figures.size(), 2u);
  for (const NetworkFigure& figure : figures) EXPECT_NEAR(figure.bytes_per_second, kRate, 1);
}

TEST_F(TableOfNetworks, SaysHowOldItsNewestTrafficIs) {
  Add(3, kRate);
  clock_.Advance(absl::Seconds(90));
  const std::vector<NetworkFigure> figures = table_.Figures();
  ASSERT_EQ(figures.size(), 1u);
  EXPECT_EQ(figures[0].age, absl::Seconds(90));
  EXPECT_EQ(figures[0].bytes, 3 * kWindowBytes);
}

TEST_F(TableOfNetworks, OldTrafficIsNoPartOfAYoungFigure) {
  Add(9, kRate, "b", Direction::kOut);
  Add(9, kRate / 50, "b", Direction::kIn);
  clock_.Advance(NetworkTable::kRemembered + absl::Seconds(1));
  Add(1, kRate / 10);
  EXPECT_TRUE(table_.Figures().empty()) << "one window is no figure";
  Add(2, kRate / 10);
  EXPECT_NEAR(Rate(), kRate / 10, 1);
}

TEST_F(TableOfNetworks, TheNodeThatWasSilentLongestGoes) {
  for (size_t i = 0; i < NetworkTable::kMostNodes; ++i) Add(3, kRate, absl::StrCat("n", i));
  Add(1, kRate, "n0");  // Heard of again.
  Add(3, kRate, "new");
  const std::vector<NetworkFigure> figures = table_.Figures();
  ASSERT_EQ(figures.size(), NetworkTable::kMostNodes);
  std::string names;
  for (const NetworkFigure& figure : figures) absl::StrAppend(&names, figure.node, " ");
  EXPECT_NE(names.find("n0 "), std::string::npos);
  EXPECT_NE(names.find("new "), std::string::npos);
  EXPECT_EQ(names.find("n1 "), std::string::npos);
}

TEST_F(TableOfNetworks, WhatCannotBeIsLeftOut) {
  TrafficWindow window = Window(kRate);
  window.busy = absl::ZeroDuration();
  for (int i = 0; i < 3; ++i) table_.Add(window);
  window = Window(kRate);
  window.end = window.begin;
  for (int i = 0; i < 3; ++i) table_.Add(window);
  EXPECT_TRUE(table_.Figures().empty());
}

}  // namespace
}  // namespace hyperframes
