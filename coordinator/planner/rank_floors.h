// Ends of the search of one rank: decisions that are not searched but follow from what they are
// for.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_RANK_FLOORS_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_RANK_FLOORS_H_

#include <vector>

#include "coordinator/planner/rank_options.h"
#include "coordinator/planner/step_model.h"

namespace hyperframes {

struct RankSolution {
  std::vector<BlockChoice> choices;
  CopyLimits limits;
  StepResult result;
};

// The decisions of `state` as they are.
RankSolution Take(const SearchState& state);

// Everything kept.
RankSolution KeepAll(const RankModel& model);

// Distinct sizes that could move, largest first.
std::vector<Bytes> MovableSizes(const RankModel& model, bool inputs_only);

// What becomes of that which a block leaves when it runs again.
enum class WhenRunAgain { kAllStays, kAllMoves };

// What holds the least memory: everything that may be recomputed is, every other storage (up to a
// size, one solution per size) moves while there is room. Where all that blocks leave when they run
// again moves as well, inputs come first; blocks that are not known to run that way are as before.
std::vector<RankSolution> FloorSolutions(const RankModel& model, WhenRunAgain what);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_RANK_FLOORS_H_
