// What a block leaves when it runs again may wait elsewhere too, where nothing else fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/planner/plan_checks.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/test_problems.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A long sequence's blocks, of which it is known what is alive while they run again: the widest
// three of what they leave.
PlanProblem Known(int layers) {
  PlanProblem problem = LongSequence(layers);
  for (BlockProfile& block : problem.ranks[0].blocks) {
    if (!block.recomputable) continue;
    block.phases = {{-1, 0, 4 * kMiB}};
    for (size_t s = block.storages.size(); s-- > 1;) {
      const Bytes bytes = block.storages[s].bytes;
      block.phases.push_back({block.storages[s].ordinal, bytes, 2 * bytes});
    }
    block.rerun_bytes = 32 * kMiB;
    block.rerun_working_bytes = 34 * kMiB;
  }
  return problem;
}

PlanProblem Unknown(PlanProblem problem) {
  for (BlockProfile& block : problem.ranks[0].blocks) {
    block.rerun_bytes = block.rerun_working_bytes = 0;
  }
  return problem;
}

int StoragesPutAwayAgain(const FramePlan& plan, const PlanProblem& problem) {
  int count = 0;
  for (size_t b = 0; b < plan.ranks[0].blocks.size(); ++b) {
    const BlockDecision& block = plan.ranks[0].blocks[b];
    if (block.policy != Policy::kRecompute) continue;
    for (size_t s = 0; s < block.storages.size(); ++s) {
      const bool is_input = problem.ranks[0].blocks[b].storages[s].is_input;
      count += !is_input && block.storages[s].tier != Tier::kKeep;
    }
  }
  return count;
}

TEST(PlannerRerun, FitsWhereNothingElseDoes) {
  PlanProblem problem = Known(8);
  // A block leaves 66 MiB beside its input of 4.
  problem.ranks[0].activation_budget = 64 * kMiB;
  const auto without = MakeGreedyPlanner()->Plan(Unknown(problem));
  ASSERT_FALSE(without.ok());
  EXPECT_THAT(std::string(without.status().message()), HasSubstr("no plan fits"));
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  EXPECT_GT(StoragesPutAwayAgain(plan, problem), 8);
  EXPECT_LE(plan.ranks[0].predicted_activation_peak, 64 * kMiB);
  EXPECT_THAT(plan.ranks[0].blocks[3].reason, HasSubstr("run again, it puts away"));
}

TEST(PlannerRerun, ChangesNoPlanThatFitsWithoutIt) {
  PlanProblem problem = Known(8);
  for (const Bytes budget : {96 * kMiB, 200 * kMiB, 400 * kMiB}) {
    problem.ranks[0].activation_budget = budget;
    const FramePlan known = MustPlan(problem);
    const FramePlan unknown = MustPlan(Unknown(problem));
    EXPECT_EQ(StoragesPutAwayAgain(known, problem), 0) << budget;
    EXPECT_EQ(known.ranks[0].predicted_step, unknown.ranks[0].predicted_step) << budget;
    for (const BlockDecision& block : known.ranks[0].blocks) {
      EXPECT_THAT(block.reason, Not(HasSubstr("puts away")));
    }
  }
}

TEST(PlannerRerun, BlocksTakeTurnsInOneBlocksRoom) {
  PlanProblem problem = Known(8);
  problem.ranks[0].activation_budget = 64 * kMiB;
  problem.forbidden_tiers = {Tier::kHost};
  // Eight inputs of 4 MiB, the loss's 12, and one block's 66 MiB: far from eight times those.
  problem.devices[1].lendable_bytes = 120 * kMiB;
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  EXPECT_GT(StoragesPutAwayAgain(plan, problem), 8);
}

TEST(PlannerRerun, TheSmallestBudgetThatWorksCountsOnIt) {
  PlanProblem problem = Known(4);
  problem.ranks[0].activation_budget = 1;
  const auto smallest = [](const PlanProblem& of) {
    const std::string text(MakeGreedyPlanner()->Plan(of).status().message());
    const size_t at = text.rfind('(');
    return at == std::string::npos ? Bytes{-1}
                                   : static_cast<Bytes>(std::stoll(text.substr(at + 1)));
  };
  const Bytes known = smallest(problem);
  EXPECT_GT(known, 0);
  EXPECT_LT(known, smallest(Unknown(problem)));
  problem.ranks[0].activation_budget = known;
  ExpectSound(problem, MustPlan(problem));
}

}  // namespace
}  // namespace hyperframes
