// Searches the decisions of one rank: cheapest predicted step under the limits of its RankModel and
// the room on every lender. Deterministic.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_RANK_SEARCH_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_RANK_SEARCH_H_

#include "absl/types/optional.h"
#include "coordinator/planner/rank_floors.h"

namespace hyperframes {

// The cheapest decisions found that fit, or nothing when even FloorSolutions do not. What blocks
// leave when they run again moves only where nothing fits without.
absl::optional<RankSolution> SearchRank(const RankModel& model);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_RANK_SEARCH_H_
