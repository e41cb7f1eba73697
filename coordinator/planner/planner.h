// Room: coordinator/planner. Decides, storage by storage, where it waits, and block by block, what
// is recomputed. Pure code: values in, values out; no gRPC, no protobuf, no clock, no I/O, and the
// same input gives the same bytes out on every machine (each rank of an embedded job runs it and
// compares hashes).
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_PLANNER_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_PLANNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/frame.h"
#include "common/units.h"
#include "coordinator/planner/problem.h"

namespace hyperframes {

struct StorageDecision {
  int32_t ordinal = 0;
  Tier tier = Tier::kKeep;
  std::string device;           // Lender for kPeer and kHost; else empty.
  Bytes preferred_offset = -1;  // In the rank's lease on that device.
};

struct BlockDecision {
  std::string name;
  Policy policy = Policy::kSave;
  std::vector<StorageDecision>
      storages;  // Every storage of the profile, also those that are recomputed.
  std::vector<StorageDecision> selected;  // Under SELECTIVE: those of `selective` that are saved.
  std::string reason;                     // One sentence with its numbers.
  double confidence = 1.0;                // 0..1.
};

struct LeaseNeed {
  std::string device;
  Tier tier = Tier::kHost;
  Bytes bytes = 0;
  std::string node;         // The lender's.
  Bytes staging_bytes = 0;  // On the rank's own GPU, where the lender is on another node.
};

struct RankPlan {
  int32_t rank = 0;
  std::vector<BlockDecision> blocks;
  std::vector<LeaseNeed> leases;
  Bytes stash_limit = 0;
  Bytes prefetch_limit = 0;
  Bytes bytes_by_tier[kTierCount] = {};
  Bytes recomputed_bytes = 0;
  Bytes activation_bytes = 0;  // A: what "nothing" would hold at its peak.
  Bytes predicted_activation_peak = 0;
  Bytes predicted_peak = 0;  // With resident and overhead.
  absl::Duration predicted_step;
  absl::Duration predicted_exposed;  // Copies that compute waits for.
  absl::Duration predicted_recompute;
};

struct FramePlan {
  std::string id;               // Hash of problem and decisions, 16 hex digits.
  std::vector<RankPlan> ranks;  // In the order of the problem's ranks.
  std::string advice;  // Worth it / modest / leave it off, with the thresholds that decided.
  double water_level_max_over_mean = 1.0;
};

class Planner {
 public:
  virtual ~Planner() = default;
  // InvalidArgument: a problem that contradicts itself (negative bytes, an unknown GPU, two
  // budgets, block names twice); the message names the field and value. ResourceExhausted: no plan
  // fits; the message names the GPU, the bytes asked, the bytes free and the smallest budget that
  // works. Thread-safe.
  virtual absl::StatusOr<FramePlan> Plan(const PlanProblem& problem) const = 0;
};

// Greedy by cost per byte under every device's capacity at every moment of the step.
std::unique_ptr<Planner> MakeGreedyPlanner();

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_PLANNER_H_
