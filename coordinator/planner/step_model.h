// Predicts one step of one rank: peak bytes and seconds, for given decisions. Pure arithmetic at
// block granularity. Memory is counted so that the engine never holds more; time is an estimate.
//
// What is held, block by block (o: one micro-batch, forward then its backward):
//   forward  i: kept of blocks < i + all storages of i (RECOMPUTE: its inputs) + stash
//   backward i: kept of blocks <= i + reload buffers of i + prefetched + stash
//               (RECOMPUTE: all storages of i, made again, with its inputs; SELECTIVE: those, and
//               what is selected beyond them)
//               Where the phases of a backward are known, what was read and given back no longer
//               counts, a moved storage counts once it is read, and the stash is empty as soon as
//               backward has begun.
//               What a block puts away as it runs again counts once it is read. Before that comes
//               the run itself, with what it has alive and with a stash, which it gives up as it
//               ends: what it made last, backward reads first, and reloads follow copy-outs.
// The stash holds at most max(stash_limit, largest moved storage so far); it counts in backward
// too, because the last copy-outs may still run then. Prefetched reloads are bounded in the same
// way.
//   Gradients count as resident once the backward that makes them has run: before it they are not
//   there, and while it runs they are in the block's transient bytes.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_STEP_MODEL_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_STEP_MODEL_H_

#include <vector>

#include "common/units.h"
#include "coordinator/planner/block_model.h"

namespace hyperframes {

// A BlockChoice boiled down to what the simulation needs.
struct BlockLoad {
  Bytes kept = 0;
  Bytes forward_alive = 0;   // While its forward runs.
  Bytes backward_extra = 0;  // Beyond `kept`, while its backward runs.
  Bytes backward_total = 0;  // The same with working memory.
  Bytes remade = 0;          // Run again.
  Bytes moved = 0;
  Bytes largest_moved = 0;
  Bytes lane_bytes[kLanes] = {};
  double out_s[kLanes] = {};
  double in_s[kLanes] = {};
  double recompute_s = 0;
  // Put away as the block runs again, and what is there meanwhile beyond `kept`, as above.
  Bytes again_moved = 0;
  Bytes again_largest = 0;
  Bytes again_extra = 0;
  Bytes again_total = 0;
  double again_s = 0;  // By which those copies make its backward longer.
};

BlockLoad LoadOf(const RankModel& model, const ModelBlock& block, const BlockChoice& choice);

struct CopyLimits {
  Bytes stash = 0;
  Bytes prefetch = 0;
  // Count both limits in full from the start, whatever has moved: a search that adds moves one by
  // one would otherwise see the first ones cost memory instead of saving it.
  bool charge_in_full = false;
};

struct StepResult {
  Bytes activation_peak = 0;
  Bytes total_peak = 0;  // With transient bytes, less gradients that are not there yet.
  double excess = 0;     // Bytes over the limits, summed over all points of the step; 0: fits.
  double step_s = 0;
  double exposed_s = 0;  // Compute stands still for a copy.
  double recompute_s = 0;
};

// `loads` has one entry per block of `model`. Both parts below.
StepResult SimulateStep(const RankModel& model, const std::vector<BlockLoad>& loads,
                        const CopyLimits& limits);
// Only the bytes (cheap), or only the seconds. Both add to a fresh `result`.
void SimulateBytes(const RankModel& model, const std::vector<BlockLoad>& loads,
                   const CopyLimits& limits, StepResult* result);
void SimulateSeconds(const RankModel& model, const std::vector<BlockLoad>& loads,
                     const CopyLimits& limits, StepResult* result);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_STEP_MODEL_H_
