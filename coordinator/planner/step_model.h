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
// The stash holds at most max(stash_limit, largest moved storage so far); it counts in backward
// too, because the last copy-outs may still run then. Prefetched reloads are bounded in the same
// way.
//   Gradients count as resident once the backward that makes them has run: before it they are not
//   there, and while it runs they are in the block's transient bytes.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_STEP_MODEL_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_STEP_MODEL_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/frame.h"
#include "common/units.h"

namespace hyperframes {

constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max() / 4;
// The engine's lanes for one direction: one per tier, or one for both where they share a link.
constexpr int kLanes = 2;

// A way from the rank's GPU to one lender and back.
struct Path {
  std::string device;
  Tier tier = Tier::kHost;
  int lane = 0;
  double out_bytes_per_s = 0;
  double out_latency_s = 0;
  double in_bytes_per_s = 0;
  double in_latency_s = 0;
  double slowdown = 0;  // Of compute while it copies.
  Bytes room = 0;       // What this rank may still lease there.
  Bytes taken = 0;      // Used or leased there already, for levelling.
  Bytes usable = 1;     // M of the lender.
  std::string kind;
};

constexpr int kNeverRead = std::numeric_limits<int>::max();

struct ModelStorage {
  Bytes bytes = 0;
  bool is_input = false;
  bool can_move = true;  // Movable and stable.
  // What an operator leaves that may be saved under SELECTIVE, by recompute time per byte: 0 is the
  // first to be saved. -1: a storage of the profile.
  int rank = -1;
  bool is_saved = false;  // Of rank >= 0: among the storages of the profile too.
  int32_t ordinal = 0;    // In the profile's list that it comes from.
  Bytes stays = 0;        // Of rank >= 0: on this GPU wherever it goes.
  // Index of the phase of backward that first reads it; kNeverRead: it is there to the end.
  int read_at = kNeverRead;
};

// As BackwardPhase.
struct ModelPhase {
  Bytes in_use = 0;
  Bytes working = 0;
};

struct ModelBlock {
  double forward_s = 0;
  double backward_s = 0;
  Bytes transient = 0;
  Bytes gradients = 0;  // Of what is resident, there only once its backward has run.
  bool can_recompute = true;
  std::vector<ModelStorage> storages;
  std::vector<ModelPhase> phases;  // Empty: unknown.
  Bytes bytes = 0;                 // Sum over storages of the profile.
  Bytes input_bytes = 0;           // Of those, inputs.
  // Seconds to run it again with the first k of its ranked storages saved; [0] is unused. Empty:
  // never SELECTIVE.
  std::vector<double> selective_s;
  std::vector<int> prefixes;  // The k worth trying, ascending.
  int least_selected = 1;     // Of the ranked ones so many are saved whenever it is SELECTIVE.
};

struct RankModel {
  std::vector<ModelBlock> blocks;
  std::vector<Path> paths;  // Peers by UUID, then hosts by UUID.
  double lane_slowdown[kLanes] = {};
  Bytes activation_limit = kNoLimit;  // On activations.
  Bytes total_limit = kNoLimit;       // On activations + transient bytes of the running block.
  bool level_first = false;
};

constexpr int kKept = -1;

// What happens to one block. `where[s]` is an index into RankModel::paths or kKept. Under recompute
// only inputs have a place, and the first `selected` ranked storages; the rest says kKept.
struct BlockChoice {
  bool recompute = false;
  std::vector<int> where;
  int selected = 0;  // > 0 only under recompute: SELECTIVE.
};

// True when storage `s` waits somewhere between forward and backward.
inline bool Waits(const ModelBlock& block, const BlockChoice& choice, size_t s) {
  const ModelStorage& storage = block.storages[s];
  if (storage.rank >= 0) return storage.rank < choice.selected;
  return !choice.recompute || storage.is_input;
}

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

// Slots start on kSlotAlignment.
constexpr Bytes SlotBytes(Bytes bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_STEP_MODEL_H_
