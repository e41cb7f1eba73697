#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "coordinator/planner/plan_checks.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/test_problems.h"

namespace hyperframes {
namespace {

using ::testing::MatchesRegex;

TEST(GreedyPlanner, RunsCheapOperatorsAgainAndSavesAttentionWhereNothingCanBeMoved) {
  PlanProblem problem = LongSequence(12);
  problem.forbidden_tiers = {Tier::kPeer, Tier::kHost};
  problem.ranks[0].activation_budget = AllActivations(problem) * 3 / 10;
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  EXPECT_GT(CountOf(plan, Policy::kSelective), 6);
  for (const BlockDecision& block : plan.ranks[0].blocks) {
    if (block.policy != Policy::kSelective) continue;
    // Attention is the second by order and the first by time per byte.
    EXPECT_TRUE(std::any_of(block.selected.begin(), block.selected.end(),
                            [](const StorageDecision& where) { return where.ordinal == 1; }));
    EXPECT_THAT(block.reason, MatchesRegex("selective: outputs of . of 5 expensive operators "
                                           ".*aten.attention.default first. are saved, the rest "
                                           "runs again in .*ms instead of 33ms.*"));
  }
  problem.forbid_selective = true;
  const FramePlan without = MustPlan(problem);
  EXPECT_EQ(CountOf(without, Policy::kSelective), 0);
  // A second attention per layer is most of what recomputing costs.
  EXPECT_LT(plan.ranks[0].predicted_recompute, without.ranks[0].predicted_recompute * 0.6);
  EXPECT_NE(plan.id, without.id);
}

TEST(GreedyPlanner, MovesOnlyExpensiveOutputsOverASlowLink) {
  PlanProblem problem = LongSequence(12);
  problem.forbidden_tiers = {Tier::kPeer};
  problem.links[1].bytes_per_second = 0.6e9;  // 59 ms of copies for the five, 122 ms for all.
  problem.ranks[0].activation_budget = AllActivations(problem) / 5;
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  Bytes selected = 0;
  for (const BlockDecision& block : plan.ranks[0].blocks) {
    for (const StorageDecision& where : block.selected) selected += where.tier == Tier::kHost;
  }
  EXPECT_GT(selected, 12);
  problem.forbid_selective = true;
  const FramePlan without = MustPlan(problem);
  EXPECT_LT(plan.ranks[0].predicted_step, without.ranks[0].predicted_step * 0.95);
  EXPECT_LE(plan.ranks[0].predicted_activation_peak, problem.ranks[0].activation_budget);
}

TEST(GreedyPlanner, IsNeverSelectiveWhereRecomputingIsForbiddenOrImpossible) {
  PlanProblem problem = LongSequence(8);
  problem.ranks[0].activation_budget = AllActivations(problem) / 2;
  problem.links[0].bytes_per_second = problem.links[1].bytes_per_second = 1e8;
  ASSERT_GT(CountOf(MustPlan(problem), Policy::kSelective), 0);
  problem.forbid_recompute = true;
  EXPECT_EQ(CountOf(MustPlan(problem), Policy::kSelective), 0);
  problem.forbid_recompute = false;
  for (BlockProfile& block : problem.ranks[0].blocks) block.recomputable = false;
  EXPECT_EQ(CountOf(MustPlan(problem), Policy::kSelective), 0);
}

TEST(GreedyPlanner, SavesRoutingWheneverItIsSelective) {
  PlanProblem problem = LongSequence(12);
  problem.forbidden_tiers = {Tier::kPeer, Tier::kHost};
  for (BlockProfile& block : problem.ranks[0].blocks) {
    if (block.selective.empty()) continue;
    // Hardly any time, so that only `always` makes it one of those that are saved.
    block.selective.push_back({9, 4096, absl::Nanoseconds(1), false, false, true, "aten.topk"});
  }
  problem.ranks[0].activation_budget = AllActivations(problem) * 3 / 10;
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  ASSERT_GT(CountOf(plan, Policy::kSelective), 0);
  for (const BlockDecision& block : plan.ranks[0].blocks) {
    if (block.policy != Policy::kSelective) continue;
    EXPECT_TRUE(std::any_of(block.selected.begin(), block.selected.end(),
                            [](const StorageDecision& where) { return where.ordinal == 9; }));
    EXPECT_GT(block.selected.size(), 1u);
  }
}

TEST(GreedyPlanner, PlansAHundredSelectiveBlocksInAFewSeconds) {
  for (const int share : {2, 5}) {
    PlanProblem problem = LongSequence(98);
    problem.ranks[0].activation_budget = AllActivations(problem) * share / 10;
    const std::clock_t start = std::clock();
    const FramePlan plan = MustPlan(problem);
    std::printf("100 blocks with selective operators at %d0 %%: planned in %.0f ms\n", share,
                static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC * 1e3);
    ExpectSound(problem, plan);
  }
}

}  // namespace
}  // namespace hyperframes
