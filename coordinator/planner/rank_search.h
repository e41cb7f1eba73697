// Searches the decisions of one rank: cheapest predicted step under the limits of its RankModel and
// the room on every lender. Deterministic.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_RANK_SEARCH_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_RANK_SEARCH_H_

#include <vector>

#include "absl/types/optional.h"
#include "coordinator/planner/step_model.h"

namespace hyperframes {

struct RankSolution {
  std::vector<BlockChoice> choices;
  CopyLimits limits;
  StepResult result;
};

// The cheapest decisions found that fit, or nothing when even FloorSolutions do not.
absl::optional<RankSolution> SearchRank(const RankModel& model);

// What holds the least memory: everything that may be recomputed is, every other storage (up to a
// size, one solution per size) moves while there is room. SearchRank succeeds if and only if one of
// these fits, so their smallest peak is the smallest budget that works.
std::vector<RankSolution> FloorSolutions(const RankModel& model);

// Everything kept.
RankSolution KeepAll(const RankModel& model);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_RANK_SEARCH_H_
