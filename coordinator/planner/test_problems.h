// Problems that several tests of this room plan.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_TEST_PROBLEMS_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_TEST_PROBLEMS_H_

#include "coordinator/planner/planner.h"

namespace hyperframes {

// One rank on SIM-a-0 with embedding, `layers` transformer layers of `storages` storages (the first
// is the input) and a loss; SIM-a-1 and host:a lend. No budget.
PlanProblem Transformer(int layers, int storages);

// Sum of all storages of rank 0.
Bytes AllActivations(const PlanProblem& problem);

// Small problems with odd sizes, speeds and flags, the same for the same seed: at most `blocks`
// blocks of at most two storages.
PlanProblem Tiny(unsigned seed, int blocks);

// Layers of a transformer with long sequences, whose five expensive operators may be saved alone:
// attention is worth ten times a matrix product. 24 MiB of the 70 MiB of a layer come from them, 21
// MiB more they leave beyond those.
PlanProblem LongSequence(int layers);

// As Tiny, each block with one storage and up to two operators that may be saved alone.
PlanProblem TinySelective(unsigned seed, int blocks);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_TEST_PROBLEMS_H_
