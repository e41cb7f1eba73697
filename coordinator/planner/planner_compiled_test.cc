// Blocks whose backward reads everything at once: no copy of theirs hides inside of them.
#include <gtest/gtest.h>

#include "coordinator/planner/plan_checks.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/rank_model.h"
#include "coordinator/planner/test_problems.h"

namespace hyperframes {
namespace {

// `gives_back`: each storage before the next one is read, as eager code does.
PlanProblem Blocks(bool gives_back) {
  PlanProblem problem = LongSequence(8);
  for (BlockProfile& block : problem.ranks[0].blocks) {
    if (!block.recomputable) continue;
    block.recomputable = false;
    block.selective.clear();
    block.phases = {{-1, 0, 0}};
    Bytes read = 0;
    for (size_t s = block.storages.size(); s-- > 1;) {
      const Bytes bytes = block.storages[s].bytes;
      read = gives_back ? bytes : read + bytes;
      block.phases.push_back({block.storages[s].ordinal, read, read});
    }
  }
  return problem;
}

bool IsAllAtOnce(const PlanProblem& problem, size_t block) {
  return BuildRankModel(problem, 0, Taken()).blocks[block].all_at_once;
}

TEST(PlannerCompiled, WhatIsReadAtOnceIsToldByItsPhases) {
  EXPECT_TRUE(IsAllAtOnce(Blocks(/*gives_back=*/false), 3));
  EXPECT_FALSE(IsAllAtOnce(Blocks(/*gives_back=*/true), 3));
  EXPECT_FALSE(IsAllAtOnce(LongSequence(8), 3)) << "without phases";
  PlanProblem few = Blocks(/*gives_back=*/false);
  few.ranks[0].blocks[3].phases.resize(3);
  EXPECT_FALSE(IsAllAtOnce(few, 3)) << "two reads tell nothing";
}

TEST(PlannerCompiled, CopiesOfABlockThatReadsAtOnceAreNotTakenToHideInIt) {
  const auto step_s = [](bool gives_back) {
    PlanProblem problem = Blocks(gives_back);
    problem.ranks[0].activation_budget = AllActivations(problem) / 3;
    const FramePlan plan = MustPlan(problem);
    ExpectSound(problem, plan);
    return absl::ToDoubleSeconds(plan.ranks[0].predicted_step);
  };
  EXPECT_GT(step_s(/*gives_back=*/false), step_s(/*gives_back=*/true));
}

}  // namespace
}  // namespace hyperframes
