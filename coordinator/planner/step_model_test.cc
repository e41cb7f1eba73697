#include "coordinator/planner/step_model.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace hyperframes {
namespace {

// Three blocks of 1 s forward and 2 s backward; each leaves an input of 100 bytes and 300 more. One
// peer that takes 100 bytes a second, no latency.
RankModel ThreeBlocks() {
  RankModel model;
  for (int b = 0; b < 3; ++b) {
    ModelBlock block;
    block.forward_s = 1;
    block.backward_s = 2;
    block.storages = {{100, /*is_input=*/true, true}, {300, false, true}};
    block.bytes = 400;
    block.input_bytes = 100;
    model.blocks.push_back(block);
  }
  Path peer;
  peer.device = "peer";
  peer.tier = Tier::kPeer;
  peer.out_bytes_per_s = 100;
  peer.in_bytes_per_s = 100;
  peer.room = 1 << 20;
  model.paths = {peer};
  return model;
}

StepResult Step(const RankModel& model, const std::vector<BlockChoice>& choices, Bytes window) {
  std::vector<BlockLoad> loads;
  for (size_t b = 0; b < choices.size(); ++b) {
    loads.push_back(LoadOf(model, model.blocks[b], choices[b]));
  }
  return SimulateStep(model, loads, {window, window, false});
}

const BlockChoice kKeep = {false, {kKept, kKept}};
const BlockChoice kMoveInput = {false, {0, kKept}};
const BlockChoice kMoveAll = {false, {0, 0}};
const BlockChoice kAgain = {true, {kKept, kKept}};
const BlockChoice kAgainInputMoved = {true, {0, kKept}};

TEST(StepModel, KeepingEverythingHoldsTheSumAndCostsNothing) {
  const StepResult result = Step(ThreeBlocks(), {kKeep, kKeep, kKeep}, 0);
  EXPECT_EQ(result.activation_peak, 1200);
  EXPECT_DOUBLE_EQ(result.step_s, 9);
  EXPECT_EQ(result.exposed_s, 0);
}

TEST(StepModel, MovedStoragesStillCountWhileTheirBlockRunsAndInBothWindows) {
  // Backward of the last block: kept 300 + 400 + 400, the input's reload comes on top of neither
  // since it never left; stash and prefetch may hold the 100 of the first block.
  EXPECT_EQ(Step(ThreeBlocks(), {kMoveInput, kKeep, kKeep}, 100).activation_peak,
            300 + 400 + 400 + 100 + 100);
  // Each block's own 400, up to 300 under way out, up to 300 coming back.
  EXPECT_EQ(Step(ThreeBlocks(), {kMoveAll, kMoveAll, kMoveAll}, 0).activation_peak,
            400 + 300 + 300);
  // Windows of two storages hold more.
  EXPECT_EQ(Step(ThreeBlocks(), {kMoveAll, kMoveAll, kMoveAll}, 500).activation_peak,
            400 + 500 + 500);
}

TEST(StepModel, AWindowNeverHoldsMoreThanWasMoved) {
  const StepResult result = Step(ThreeBlocks(), {kMoveInput, kKeep, kKeep}, 1 << 20);
  EXPECT_EQ(result.activation_peak, 300 + 400 + 400 + 100 + 100);
}

TEST(StepModel, RecomputeKeepsInputsAndMakesTheRestAgain) {
  const StepResult all = Step(ThreeBlocks(), {kAgain, kAgain, kAgain}, 0);
  EXPECT_EQ(all.activation_peak, 100 + 100 + 400);
  EXPECT_DOUBLE_EQ(all.recompute_s, 3);
  EXPECT_DOUBLE_EQ(all.step_s, 12);
  const StepResult moved =
      Step(ThreeBlocks(), {kAgainInputMoved, kAgainInputMoved, kAgainInputMoved}, 0);
  EXPECT_EQ(moved.activation_peak, 400 + 100 + 100);  // Block, stash, prefetch.
}

TEST(StepModel, SelectiveKeepsWhatItSavesAndRunsTheRestAgain) {
  RankModel model = ThreeBlocks();
  for (ModelBlock& block : model.blocks) {
    // An operator whose output of 60 bytes backward needs, and one of 40 that it does not.
    block.storages.push_back({60, false, true, /*rank=*/0, /*is_saved=*/true});
    block.storages.push_back({40, false, true, /*rank=*/1, /*is_saved=*/false});
    block.selective_s = {0, 0.5, 0.25};
  }
  const BlockChoice first = {true, {kKept, kKept, kKept, kKept}, 1};
  const StepResult one = Step(model, {first, first, first}, 0);
  EXPECT_DOUBLE_EQ(one.recompute_s, 1.5);
  EXPECT_EQ(one.activation_peak, 160 + 160 + 400);
  const BlockChoice both = {true, {kKept, kKept, kKept, kKept}, 2};
  const StepResult two = Step(model, {both, both, both}, 0);
  EXPECT_DOUBLE_EQ(two.recompute_s, 0.75);
  EXPECT_EQ(two.activation_peak, 200 + 200 + 440);
  // All of it moved: a block with all that backward needs and the 40 besides, stash and prefetch.
  const BlockChoice moved = {true, {0, kKept, 0, 0}, 2};
  EXPECT_EQ(Step(model, {moved, moved, moved}, 100).activation_peak, 440 + 100 + 100);
}

TEST(StepModel, WhatABlockPutsAwayAsItRunsAgainCountsOnceItIsRead) {
  RankModel model = ThreeBlocks();
  for (ModelBlock& block : model.blocks) {
    block.storages = {{100, /*is_input=*/true, true}};
    block.bytes = 100;
    block.phases = {{0, 30}};
    block.rerun = 250;
    block.rerun_working = 320;
    for (int s = 1; s <= 10; ++s) {
      block.storages.push_back({100, false, true});
      block.storages.back().read_at = 11 - s;  // Last made, first read.
      block.phases.push_back({100, 140});
      block.bytes += 100;
    }
  }
  BlockChoice stays = {true, std::vector<int>(11, kKept)};
  EXPECT_EQ(Step(model, {stays, stays, stays}, 0).activation_peak, 2 * 100 + 1100);
  BlockChoice moves = stays;
  for (size_t s = 1; s <= 10; ++s) moves.where[s] = 0;
  const StepResult result = Step(model, {moves, moves, moves}, 0);
  // Inputs, the run itself, and a storage on its way out.
  EXPECT_EQ(result.activation_peak, 3 * 100 + 250 + 100);
  // Of all memory also the gradient that the run finds.
  EXPECT_EQ(result.total_peak, 3 * 100 + 320 + 30 + 100);
  // Each block's 1000 bytes go out in 10 s, of which the run hides 1, and come back in 10.
  EXPECT_DOUBLE_EQ(result.step_s, 9 + 3 + 3 * (9 + 10));
  // What stays is there all along.
  moves.where[1] = kKept;
  EXPECT_EQ(Step(model, {moves, moves, moves}, 0).activation_peak, 3 * 100 + 100 + 250 + 100);
  // Backward holds what it reads, and one storage on its way back.
  for (ModelBlock& block : model.blocks) {
    block.rerun = block.rerun_working = 1;
    block.phases[4] = {240, 290};
  }
  moves.where[1] = 0;
  EXPECT_EQ(Step(model, {moves, moves, moves}, 0).activation_peak, 3 * 100 + 240 + 100);
  EXPECT_EQ(Step(model, {moves, moves, moves}, 0).total_peak, 3 * 100 + 290 + 100);
}

TEST(StepModel, TransientBytesCountInTheTotalOnly) {
  RankModel model = ThreeBlocks();
  model.blocks[1].transient = 1000;
  const StepResult result = Step(model, {kKeep, kKeep, kKeep}, 0);
  EXPECT_EQ(result.activation_peak, 1200);
  EXPECT_EQ(result.total_peak, 800 + 1000);
  model.total_limit = 1799;
  EXPECT_GT(Step(model, {kKeep, kKeep, kKeep}, 0).excess, 0);
  model.total_limit = 1800;
  EXPECT_EQ(Step(model, {kKeep, kKeep, kKeep}, 0).excess, 0);
}

TEST(StepModel, CopiesThatFitBehindComputeAreFree) {
  // 1 s out during the second block's forward, 1 s back during its backward.
  const StepResult result = Step(ThreeBlocks(), {kMoveInput, kKeep, kKeep}, 100);
  EXPECT_DOUBLE_EQ(result.step_s, 9);
  EXPECT_EQ(result.exposed_s, 0);
}

TEST(StepModel, ASmallStashMakesForwardWaitAndALateReloadBackward) {
  const StepResult result = Step(ThreeBlocks(), {kMoveAll, kKeep, kKeep}, 300);
  // Out: 400 queued, 300 may stay: 1 s of waiting. Back: 300 prefetched, the last 100 waits 1 s.
  EXPECT_NEAR(result.exposed_s, 2, 1e-9);
  EXPECT_NEAR(result.step_s, 11, 1e-9);
  // Larger windows cannot help: 8 s of copies, 6 s of compute pass in between.
  EXPECT_NEAR(Step(ThreeBlocks(), {kMoveAll, kKeep, kKeep}, 400).exposed_s, 2, 1e-9);
  RankModel faster = ThreeBlocks();
  faster.paths[0].out_bytes_per_s = faster.paths[0].in_bytes_per_s = 200;
  EXPECT_NEAR(Step(faster, {kMoveAll, kKeep, kKeep}, 400).exposed_s, 0, 1e-9);
}

TEST(StepModel, TheLastBlockGainsNothingByMoving) {
  const StepResult kept = Step(ThreeBlocks(), {kKeep, kKeep, kKeep}, 0);
  const StepResult moved = Step(ThreeBlocks(), {kKeep, kKeep, kMoveAll}, 0);
  EXPECT_GE(moved.activation_peak, kept.activation_peak);
  EXPECT_GT(moved.exposed_s, 0);
}

TEST(StepModel, CopiesSlowComputeByTheSharesOfTheirLink) {
  RankModel model = ThreeBlocks();
  model.lane_slowdown[0] = {/*out=*/0.5, /*in=*/0.5};
  const StepResult result = Step(model, {kMoveInput, kKeep, kKeep}, 100);
  // 1 s of copy beside forward and 1 s beside backward, each costing half a second.
  EXPECT_NEAR(result.step_s, 10, 1e-9);
}

TEST(StepModel, ForwardIsSlowedByCopiesOutAndBackwardByCopiesIn) {
  RankModel model = ThreeBlocks();
  model.lane_slowdown[0] = {/*out=*/0.5, /*in=*/0.25};
  EXPECT_NEAR(Step(model, {kMoveInput, kKeep, kKeep}, 100).step_s, 9.75, 1e-9);
  model.lane_slowdown[1] = {/*out=*/1, /*in=*/1};  // Of a lane that copies nothing.
  EXPECT_NEAR(Step(model, {kMoveInput, kKeep, kKeep}, 100).step_s, 9.75, 1e-9);
}

TEST(StepModel, ChargingInFullIsNeverLess) {
  const RankModel model = ThreeBlocks();
  std::vector<BlockLoad> loads;
  for (const BlockChoice& choice : {kMoveInput, kAgain, kKeep}) {
    loads.push_back(LoadOf(model, model.blocks[loads.size()], choice));
  }
  const StepResult real = SimulateStep(model, loads, {200, 200, false});
  const StepResult full = SimulateStep(model, loads, {200, 200, true});
  EXPECT_GE(full.activation_peak, real.activation_peak);
}

TEST(StepModel, GradientsTakeMemoryOnlyOnceTheirBackwardHasRun) {
  RankModel model = ThreeBlocks();
  for (ModelBlock& block : model.blocks) block.gradients = 1000;
  // Backward of the last block, with 400 kept of each: all 3000 of gradients are still to come.
  const StepResult kept = Step(model, {kKeep, kKeep, kKeep}, 0);
  EXPECT_EQ(kept.activation_peak, 1200);
  // The highest point is the first block's backward: 400, and 2000 of the 3000 are there.
  EXPECT_EQ(kept.total_peak, 0);  // What is resident in the end is never below.
  model.blocks[0].gradients = 100;
  EXPECT_EQ(Step(model, {kKeep, kKeep, kKeep}, 0).total_peak, 400 - 100);
  // 1200 kept at the start of backward fit beside the 2100 that are absent then; at 400 the first
  // block's backward is what binds.
  model.total_limit = 300;
  EXPECT_EQ(Step(model, {kKeep, kKeep, kKeep}, 0).excess, 0);
  model.total_limit = 299;
  EXPECT_EQ(Step(model, {kKeep, kKeep, kKeep}, 0).excess, 1);
}

// Each block's own 300 are read first and are still in use when all is over; 50 of working memory.
RankModel ThreeBlocksWithPhases() {
  RankModel model = ThreeBlocks();
  for (ModelBlock& block : model.blocks) {
    block.storages[1].read_at = 1;
    block.phases = {{/*in_use=*/0, /*working=*/20}, {/*in_use=*/300, /*working=*/350}};
  }
  return model;
}

TEST(StepModel, WhatWasReadCountsAsLongAsItIsInUse) {
  RankModel model = ThreeBlocksWithPhases();
  const StepResult kept = Step(model, {kKeep, kKeep, kKeep}, 0);
  EXPECT_EQ(kept.activation_peak, 1200);
  // Before the first read all 1200 are there with 20 at work, after it 350 instead of 300.
  EXPECT_EQ(kept.total_peak, 1250);
  for (ModelBlock& block : model.blocks) block.phases[1] = {100, 100};
  // The peak is at the end of forward now: the 300 are given back before 100 come.
  EXPECT_EQ(Step(model, {kKeep, kKeep, kKeep}, 0).total_peak, 1220);
}

TEST(StepModel, AMovedStorageCountsInItsWindowUntilItIsRead) {
  const RankModel model = ThreeBlocksWithPhases();
  const BlockChoice move_own = {false, {kKept, 0}};
  // Forward: inputs of 300 kept, 300 of the running block, 300 under way. Backward: 300 kept, 300
  // in use, and 300 fetched ahead; the stash has been given up.
  EXPECT_EQ(Step(model, {move_own, move_own, move_own}, 300).activation_peak, 300 + 300 + 300);
  // Without a window the largest storage may still be on its way.
  EXPECT_EQ(Step(model, {move_own, move_own, move_own}, 0).activation_peak, 300 + 300 + 300);
}

TEST(StepModel, WhatIsReadNobodyKnowsWhenCountsDuringAllOfBackward) {
  RankModel model = ThreeBlocksWithPhases();
  const BlockChoice move_own = {false, {kKept, 0}};
  model.blocks[0].phases.clear();
  // A block whose phases are not known is still read in its own backward alone: 300 kept, the
  // last block's own 300 and a window of 300.
  EXPECT_EQ(Step(model, {move_own, move_own, move_own}, 300).activation_peak, 300 + 300 + 300);
  model.blocks[0].read_any_time = true;
  // Backward of the last block: 300 kept, its own 300 and the first block's in use, a window of
  // 300.
  EXPECT_EQ(Step(model, {move_own, move_own, move_own}, 300).activation_peak, 300 + 600 + 300);
}

TEST(StepModel, ReloadsHideBehindTheBackwardThatReadsThem) {
  RankModel model = ThreeBlocksWithPhases();
  model.paths[0].out_bytes_per_s = 1e9;
  model.paths[0].in_bytes_per_s = 200;  // 300 bytes take 1.5 s of the 2 s of a backward.
  const BlockChoice move_own = {false, {kKept, 0}};
  // Only the last block's first storage is waited for: nothing ran before that could hide it.
  EXPECT_NEAR(Step(model, {move_own, move_own, move_own}, 300).exposed_s, 1.5, 1e-6);
}

}  // namespace
}  // namespace hyperframes
