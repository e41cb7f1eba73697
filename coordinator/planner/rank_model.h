// Boils a PlanProblem down to what one rank's search needs: blocks, ways to lenders, limits.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_RANK_MODEL_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_RANK_MODEL_H_

#include <map>
#include <string>

#include "coordinator/planner/planner.h"
#include "coordinator/planner/step_model.h"

namespace hyperframes {

// What earlier ranks of the same problem have taken.
struct Taken {
  std::map<std::string, Bytes> leased;     // Per lender.
  std::map<std::string, Bytes> own_peaks;  // Of GPUs whose rank is planned already.
};

enum class Lenders {
  kOwnNode,   // On the rank's node alone.
  kAllNodes,  // Others too: their staging memory is taken off the rank's limit, used or not.
};

// `problem` is checked and in canonical order.
RankModel BuildRankModel(const PlanProblem& problem, size_t rank, const Taken& taken,
                         Lenders lenders = Lenders::kOwnNode);

// Bytes that the allocator's alignment adds at most, over all storages of a rank. Counted where a
// budget bounds allocated bytes, not where it bounds the storages alone.
Bytes RoundingBytes(const RankProblem& rank);

// The device with this UUID; it exists.
const DeviceProfile& DeviceOf(const PlanProblem& problem, const std::string& uuid);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_RANK_MODEL_H_
