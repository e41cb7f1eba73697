// The pieces of shared memory that two processes use: the ring of commands, staging places, words
// and credits.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "agent/transfer/command_ring.h"
#include "agent/transfer/credits.h"
#include "agent/transfer/staging_ring.h"
#include "common/frame.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

const auto kNever = [] { return false; };
const auto kAtOnce = [] { return true; };

TransferCommand Command(uint32_t sequence) {
  TransferCommand command;
  command.sequence = sequence;
  command.slot = sequence * 512;
  return command;
}

TEST(CommandRing, HandsCommandsOverInOrderBetweenThreads) {
  const auto ring = std::make_unique<RingPage>();
  constexpr uint32_t kCommands = 20000;  // Many times round.
  std::thread producer([&ring] {
    CommandProducer out(ring.get(), 7);
    for (uint32_t i = 1; i <= kCommands; ++i) EXPECT_TRUE(out.Push(Command(i), kNever).ok());
  });
  CommandConsumer in(ring.get(), 7);
  for (uint32_t i = 1; i <= kCommands; ++i) {
    TransferCommand command;
    ASSERT_TRUE(in.Take(&command, kNever).value());
    ASSERT_EQ(command.sequence, i);
    ASSERT_EQ(command.slot, i * 512);
  }
  producer.join();
}

TEST(CommandRing, AFullRingWaitsUntilNobodyTakesAnyMore) {
  const auto ring = std::make_unique<RingPage>();
  CommandProducer out(ring.get(), 7);
  for (uint32_t i = 1; i <= kRingCapacity; ++i) ASSERT_TRUE(out.Push(Command(i), kNever).ok());
  EXPECT_EQ(out.Push(Command(kRingCapacity + 1), kAtOnce).code(), absl::StatusCode::kCancelled);
  CommandConsumer in(ring.get(), 7);
  TransferCommand command;
  ASSERT_TRUE(in.TryTake(&command).value());
  EXPECT_TRUE(out.Push(Command(kRingCapacity + 1), kNever).ok());
}

TEST(CommandRing, AnEmptyRingHasNothing) {
  const auto ring = std::make_unique<RingPage>();
  CommandConsumer in(ring.get(), 7);
  TransferCommand command;
  EXPECT_FALSE(in.TryTake(&command).value());
  EXPECT_FALSE(in.Take(&command, kAtOnce).value());
}

TEST(CommandRing, WhatTheOtherSideCannotHaveWrittenIsDataLoss) {
  const auto ring = std::make_unique<RingPage>();
  CommandProducer out(ring.get(), 7);
  ASSERT_TRUE(out.Push(Command(1), kNever).ok());
  TransferCommand command;
  {
    CommandConsumer of_another_page(ring.get(), 8);
    EXPECT_EQ(of_another_page.TryTake(&command).status().code(), absl::StatusCode::kDataLoss);
  }
  ring->pushed = kRingCapacity + 5;
  CommandConsumer in(ring.get(), 7);
  EXPECT_EQ(in.TryTake(&command).status().code(), absl::StatusCode::kDataLoss);
  ring->taken = 99;
  EXPECT_EQ(out.Push(Command(2), kNever).code(), absl::StatusCode::kDataLoss);
}

TEST(CommandRing, ACommandOutOfSequenceIsDataLoss) {
  const auto ring = std::make_unique<RingPage>();
  CommandProducer out(ring.get(), 7);
  ASSERT_TRUE(out.Push(Command(2), kNever).ok());
  CommandConsumer in(ring.get(), 7);
  TransferCommand command;
  EXPECT_EQ(in.TryTake(&command).status().code(), absl::StatusCode::kDataLoss);
}

TEST(StagingRing, NoPlaceIsGivenBeforeItsLastPieceIsNamed) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const Bytes size = kSlotAlignment * (8 + static_cast<Bytes>(random() % 60));
    StagingRing ring(/*begin=*/4096, size);
    // By granule: the newest piece that has been there.
    std::map<Bytes, uint32_t> newest;
    uint32_t over = 0;  // Everything up to here has been waited for.
    for (uint32_t sequence = 1; sequence <= 500; ++sequence) {
      const Bytes bytes = 1 + static_cast<Bytes>(random() % ring.largest_piece());
      const StagingRing::Place place = ring.Add(sequence, bytes);
      ASSERT_GE(place.offset, 4096);
      ASSERT_LE(place.offset + bytes, 4096 + size);
      ASSERT_EQ(place.offset % kSlotAlignment, 0);
      ASSERT_LT(place.after, sequence);
      over = std::max(over, place.after);
      for (Bytes at = place.offset; at < place.offset + bytes; at += kSlotAlignment) {
        ASSERT_LE(newest[at], over) << "seed " << seed << ", piece " << sequence;
        newest[at] = sequence;
      }
    }
  }
}

TEST(StagingRing, SeveralPiecesAreUnderWayAtOnce) {
  StagingRing ring(0, 64 * kSlotAlignment);
  for (uint32_t sequence = 1; sequence <= 4; ++sequence) {
    EXPECT_EQ(ring.Add(sequence, ring.largest_piece()).after, 0u);
  }
  EXPECT_EQ(ring.Add(5, ring.largest_piece()).after, 1u);
}

TEST(SharedWord, IsReachedAcrossTheWrap) {
  EXPECT_TRUE(Reached(5, 5));
  EXPECT_TRUE(Reached(6, 5));
  EXPECT_FALSE(Reached(4, 5));
  EXPECT_TRUE(Reached(3, 0xfffffff0u));
  EXPECT_FALSE(Reached(0xfffffff0u, 3));
  EXPECT_EQ(NextNumber(0xffffffffu), 1u) << "0 stands for nothing";
}

TEST(SharedWord, WakesWhoeverWaits) {
  for (const WordWriter writer : {WordWriter::kPosts, WordWriter::kSilent}) {
    SharedWord word{0};
    std::thread poster([&word] {
      for (uint32_t i = 1; i <= 100; ++i) PostWord(&word, i);
    });
    EXPECT_TRUE(AwaitWord(word, 100, nullptr, writer));
    poster.join();
    EXPECT_FALSE(AwaitWord(word, 101, kAtOnce, writer));
  }
}

TEST(Credits, BoundWhatIsUnderWayAndLetOnePieceThroughHoweverLarge) {
  Credits credits(100);
  EXPECT_TRUE(credits.Take(1000, kAtOnce)) << "nothing else is under way";
  EXPECT_FALSE(credits.Take(1, kAtOnce));
  credits.GiveBack(1000);
  EXPECT_TRUE(credits.Take(60, kAtOnce));
  EXPECT_TRUE(credits.Take(40, kAtOnce));
  EXPECT_FALSE(credits.Take(1, kAtOnce));
  std::thread giver([&credits] { credits.GiveBack(60); });
  EXPECT_TRUE(credits.Take(50, kNever));
  giver.join();
  EXPECT_EQ(credits.under_way(), 90);
  EXPECT_EQ(credits.most_under_way(), 1000);
}

}  // namespace
}  // namespace hyperframes
