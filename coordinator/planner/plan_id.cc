#include <cstdint>

#include "absl/strings/str_format.h"
#include "coordinator/planner/plan_words.h"

namespace hyperframes {
namespace {

// FNV-1a over a canonical byte sequence: every value has a fixed width or is led by its length, so
// that no two sequences of values give the same bytes.
class Hash {
 public:
  void Number(int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      Byte(static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * byte)));
    }
  }
  void Text(const std::string& text) {
    Number(static_cast<int64_t>(text.size()));
    for (const char c : text) Byte(static_cast<unsigned char>(c));
  }
  // Whole nanoseconds and thousandths: durations and rates survive a trip through JSON.
  void Real(double value) { Text(absl::StrFormat("%.9g", value)); }
  void Time(absl::Duration duration) { Number(absl::ToInt64Nanoseconds(duration)); }
  std::string Hex() const { return absl::StrFormat("%016x", state_); }

 private:
  void Byte(unsigned char byte) {
    state_ ^= byte;
    state_ *= 0x100000001b3ULL;
  }
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

void AddRank(const RankProblem& rank, Hash* hash) {
  hash->Number(rank.rank);
  hash->Text(rank.gpu);
  hash->Number(rank.resident_bytes);
  hash->Number(rank.overhead_bytes);
  hash->Number(rank.budget);
  hash->Number(rank.activation_budget);
  for (const CopySlowdown& slowdown : {rank.peer_slowdown, rank.host_slowdown}) {
    hash->Real(slowdown.out);
    hash->Real(slowdown.in);
  }
  hash->Number(static_cast<int64_t>(rank.blocks.size()));
  for (const BlockProfile& block : rank.blocks) {
    hash->Text(block.name);
    hash->Time(block.forward);
    hash->Time(block.backward);
    hash->Number(block.recomputable ? 1 : 0);
    hash->Number(block.splittable ? 1 : 0);
    hash->Number(block.transient_bytes);
    hash->Number(block.gradient_bytes);
    hash->Number(block.read_any_time ? 1 : 0);
    hash->Number(block.rerun_bytes);
    hash->Number(block.rerun_working_bytes);
    hash->Number(static_cast<int64_t>(block.phases.size()));
    for (const BackwardPhase& phase : block.phases) {
      hash->Number(phase.reads);
      hash->Number(phase.in_use_bytes);
      hash->Number(phase.working_bytes);
    }
    hash->Number(static_cast<int64_t>(block.storages.size()));
    for (const StorageProfile& storage : block.storages) {
      hash->Number(storage.ordinal);
      hash->Number(storage.bytes);
      hash->Text(storage.dtype);
      hash->Number(static_cast<int64_t>(storage.shape.size()));
      for (const int64_t extent : storage.shape) hash->Number(extent);
      hash->Number((storage.is_input ? 1 : 0) + (storage.movable ? 2 : 0) +
                   (storage.stable ? 4 : 0));
      hash->Number(storage.consumers);
    }
    hash->Time(block.selective_base);
    hash->Number(static_cast<int64_t>(block.selective.size()));
    for (const SelectiveStorage& storage : block.selective) {
      hash->Number(storage.ordinal);
      hash->Number(storage.bytes);
      hash->Time(storage.recompute);
      hash->Number((storage.is_saved ? 1 : 0) + (storage.movable ? 2 : 0) +
                   (storage.always ? 4 : 0));
      hash->Text(storage.op);
      hash->Number(storage.kept_bytes);
    }
  }
}

void AddSurroundings(const PlanProblem& problem, Hash* hash) {
  hash->Text(problem.job_id);
  hash->Number(static_cast<int64_t>(problem.devices.size()));
  for (const DeviceProfile& device : problem.devices) {
    hash->Text(device.uuid);
    hash->Text(device.node);
    hash->Number(device.is_host ? 1 : 0);
    hash->Number(device.usable_bytes);
    hash->Number(device.lendable_bytes);
    hash->Number(device.transfer_bytes);
  }
  hash->Number(static_cast<int64_t>(problem.links.size()));
  for (const LinkProfile& link : problem.links) {
    hash->Text(link.from);
    hash->Text(link.to);
    hash->Real(link.bytes_per_second);
    hash->Time(link.latency);
    hash->Text(link.kind);
    hash->Text(link.shared_group);
    hash->Real(link.compute_slowdown);
  }
  for (const Tier tier : problem.forbidden_tiers) hash->Number(static_cast<int64_t>(tier));
  hash->Number((problem.level_first ? 1 : 0) + (problem.forbid_recompute ? 2 : 0) +
               (problem.forbid_selective ? 4 : 0));
}

void AddDecisions(const RankPlan& rank, Hash* hash) {
  hash->Number(rank.stash_limit);
  hash->Number(rank.prefetch_limit);
  for (const BlockDecision& block : rank.blocks) {
    hash->Number(static_cast<int64_t>(block.policy));
    hash->Number(static_cast<int64_t>(block.selected.size()));
    for (const auto* list : {&block.storages, &block.selected}) {
      for (const StorageDecision& storage : *list) {
        if (list == &block.selected) hash->Number(storage.ordinal);
        hash->Number(static_cast<int64_t>(storage.tier));
        hash->Text(storage.device);
        hash->Number(storage.preferred_offset);
      }
    }
  }
}

}  // namespace

std::string PlanId(const PlanProblem& problem, const FramePlan& plan) {
  Hash hash;
  hash.Number(static_cast<int64_t>(problem.ranks.size()));
  for (const RankProblem& rank : problem.ranks) AddRank(rank, &hash);
  AddSurroundings(problem, &hash);
  for (const RankPlan& rank : plan.ranks) AddDecisions(rank, &hash);
  return hash.Hex();
}

}  // namespace hyperframes
