// What a planner is asked: blocks with what they leave behind, devices, links, limits. Plain
// values.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_PROBLEM_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_PROBLEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/frame.h"
#include "common/units.h"

namespace hyperframes {

// One allocation saved for backward.
struct StorageProfile {
  int32_t ordinal = 0;  // Order in which its block saved it.
  Bytes bytes = 0;
  std::string dtype;           // "float32", as torch prints it without its prefix.
  std::vector<int64_t> shape;  // Of the first view that was saved.
  bool is_input = false;       // An input of the block: still there under RECOMPUTE.
  bool movable = true;         // False: stays KEEP; why is in unmovable_reason.
  std::string unmovable_reason;
  bool stable = true;     // False when two profiled steps differed: never placed by guess.
  int32_t consumers = 1;  // How often backward reads it.
};

// The outputs of one expensive operator of a block: saved, they spare running it again.
struct SelectiveStorage {
  int32_t ordinal = 0;       // In a space of its own.
  Bytes bytes = 0;           // Of outputs that may move.
  absl::Duration recompute;  // What the operator takes.
  bool is_saved = false;     // Among BlockProfile::storages too: a SAVE would keep it for backward.
  bool movable = true;
  bool always = false;  // Saved whenever the block is SELECTIVE.
  std::string op;
  Bytes kept_bytes = 0;  // Of outputs too small to move: they stay wherever the others go.
};

// A part of a block's backward: from where it first reads a storage until it reads the next one.
struct BackwardPhase {
  int32_t reads = -1;  // Ordinal of that storage; -1: before any is read.
  // Of the storages read so far those that are not given back yet, at the phase's start. Inputs of
  // the block do not count.
  Bytes in_use_bytes = 0;
  // Most bytes in the phase beyond the storages that are still to be read: those in use, gradients,
  // working memory.
  Bytes working_bytes = 0;
};

struct BlockProfile {
  std::string name;  // Dotted module path; "loss" for what the loss leaves.
  absl::Duration forward;
  absl::Duration backward;
  std::vector<StorageProfile> storages;
  bool recomputable =
      true;  // False for loss, embeddings called outside a module, blocks that the user pinned.
  bool splittable = false;
  Bytes transient_bytes = 0;  // Working memory above its storages while it runs.
  // Of the rank's resident bytes, gradients that only this block's backward brings into being; the
  // transient bytes of that backward include them. 0 where gradients outlive the step.
  Bytes gradient_bytes = 0;
  // In order. Empty: unknown, and all storages are taken to be there during all of backward.
  std::vector<BackwardPhase> phases;
  bool read_any_time = false;  // Its storages: what is saved outside every block.
  // Of its storages but inputs, most bytes that are alive at once while it runs and nobody holds
  // them for backward; and the same of all memory. 0: unknown.
  Bytes rerun_bytes = 0;
  Bytes rerun_working_bytes = 0;
  std::vector<SelectiveStorage> selective;  // Empty: never SELECTIVE.
  absl::Duration selective_base;            // Running it again with all of them saved.
};

// By which share compute takes longer while frames go to a tier, or come back: 0.08 = 8 %.
struct CopySlowdown {
  double out = 0;
  double in = 0;
};

// One training process: blocks in order of execution, and what it has to live in.
struct RankProblem {
  int32_t rank = 0;
  std::string gpu;  // UUID of the GPU that computes.
  std::vector<BlockProfile> blocks;
  Bytes resident_bytes = 0;  // P: weights, gradients, optimizer, buffers.
  Bytes overhead_bytes = 0;  // Context and communication buffers.
  // At most one is >= 0. `budget` bounds resident + activations; `activation_budget` bounds kept
  // storages, stash, reload buffers and recomputed tensors alone. Both -1: the GPU's usable bytes
  // bind.
  Bytes budget = -1;
  Bytes activation_budget = -1;
  // Measured with the rank's own work, for lenders on its own node; 0: nothing, or not measured. A
  // link that says more binds.
  CopySlowdown peer_slowdown;
  CopySlowdown host_slowdown;
};

// A GPU, or a node's host memory, with what may be lent from it to this job.
struct DeviceProfile {
  std::string uuid;  // Empty never. Host memory of node n: "host:<node>".
  std::string node;
  bool is_host = false;
  Bytes usable_bytes = 0;    // M.
  Bytes lendable_bytes = 0;  // After its own use, its reserve, and other jobs' leases.
  // What hftransfer keeps of it while frames go to, or come from, another node.
  Bytes transfer_bytes = 0;
};

// A path between a GPU that computes and a lender, measured, or as told of the network between two
// nodes. Both directions are priced alike unless
// two entries say otherwise.
struct LinkProfile {
  std::string from;
  std::string to;
  double bytes_per_second = 0;
  absl::Duration latency;
  std::string kind;             // "nvlink", "pcie", "simulated", ... for reasons.
  std::string shared_group;     // Links with the same non-empty group share one limit.
  double compute_slowdown = 0;  // Share by which compute slows while a copy runs, 0.07 = 7 %.
};

struct PlanProblem {
  std::string job_id;
  std::vector<RankProblem> ranks;
  std::vector<DeviceProfile> devices;
  std::vector<LinkProfile> links;
  std::vector<Tier> forbidden_tiers;
  bool level_first = false;       // objective="level".
  bool forbid_recompute = false;  // SELECTIVE too.
  bool forbid_selective = false;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_PROBLEM_H_
