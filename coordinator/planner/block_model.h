// What the search of one rank knows of blocks, storages and ways to lenders, and what may be
// decided for a block.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_BLOCK_MODEL_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_BLOCK_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/frame.h"
#include "common/units.h"
#include "coordinator/planner/problem.h"

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
  CopySlowdown slowdown;  // Of compute while it copies.
  Bytes room = 0;         // What this rank may still lease there.
  Bytes taken = 0;        // Used or leased there already, for levelling.
  Bytes usable = 1;       // M of the lender.
  std::string kind;
  std::string node;   // Of the lender, where that is another one than the GPU's; else empty.
  Bytes staging = 0;  // With it: on the rank's GPU, for as long as there is a lease.
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
  bool read_any_time = false;
  // Of what it leaves, inputs apart, alive at once while it runs again and all of it moves; and of
  // all memory. 0: unknown, and then nothing of it moves when it runs again.
  Bytes rerun = 0;
  Bytes rerun_working = 0;
  std::vector<ModelStorage> storages;
  std::vector<ModelPhase> phases;  // Empty: unknown.
  // Its backward reads everything before it gives anything back, as compiled code does: then its
  // forward saves everything as it ends, too, and no copy of its own hides inside of it.
  bool all_at_once = false;
  Bytes bytes = 0;        // Sum over storages of the profile.
  Bytes input_bytes = 0;  // Of those, inputs.
  // Seconds to run it again with the first k of its ranked storages saved; [0] is unused. Empty:
  // never SELECTIVE.
  std::vector<double> selective_s;
  std::vector<int> prefixes;  // The k worth trying, ascending.
  int least_selected = 1;     // Of the ranked ones so many are saved whenever it is SELECTIVE.
};

struct RankModel {
  std::vector<ModelBlock> blocks;
  std::vector<Path> paths;  // Peers, other nodes' GPUs, hosts; each by UUID.
  CopySlowdown lane_slowdown[kLanes];
  Bytes activation_limit = kNoLimit;  // On activations.
  Bytes total_limit = kNoLimit;       // On activations + transient bytes of the running block.
  bool level_first = false;
  // Of total_limit: taken off it already for whatever paths to other nodes need on this GPU.
  Bytes across_nodes = 0;
};

constexpr int kKept = -1;

// What happens to one block. `where[s]` is an index into RankModel::paths or kKept. Under recompute
// inputs have a place, and the first `selected` ranked storages. What else the block leaves when it
// runs again may have one too, where nothing is selected: from there backward brings it back.
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

// True when storage `s` is put away as its block runs again, until its backward reads it.
inline bool MovesAgain(const ModelBlock& block, const BlockChoice& choice, size_t s) {
  return choice.where[s] != kKept && !Waits(block, choice, s);
}

// Slots start on kSlotAlignment.
constexpr Bytes SlotBytes(Bytes bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_BLOCK_MODEL_H_
