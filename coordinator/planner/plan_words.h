// The sentences of a plan: why a block is treated as it is, whether the whole is worth it, and what
// to do where nothing fits.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_PLAN_WORDS_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_PLAN_WORDS_H_

#include <string>

#include "absl/status/status.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/rank_search.h"
#include "coordinator/planner/step_model.h"

namespace hyperframes {

// "moved 12MiB to SIM-a-1: 1.1ms of copy each way, 9ms of compute pass before it is needed again;
// recompute would cost 8ms".
std::string BlockReason(const RankModel& model, const BlockProfile& profile, size_t block,
                        const RankSolution& solution);

// Three levels with the thresholds that decided; a warning for links far below their promise.
std::string Advice(const PlanProblem& problem, const FramePlan& plan);

// ResourceExhausted for a rank whose model has no solution: GPU, bytes asked, bytes free, and the
// smallest budget that works (searched and tried).
absl::Status NothingFits(const PlanProblem& problem, size_t rank, const RankModel& model);

// 16 hex digits of a 64-bit hash over problem and decisions.
std::string PlanId(const PlanProblem& problem, const FramePlan& plan);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_PLAN_WORDS_H_
