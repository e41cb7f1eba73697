// The greedy planner: ranks in order, each searched alone under what the earlier ones left.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "common/status_macros.h"
#include "coordinator/planner/plan_words.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/problem_check.h"
#include "coordinator/planner/rank_model.h"
#include "coordinator/planner/rank_options.h"
#include "coordinator/planner/rank_search.h"

namespace hyperframes {
namespace {

constexpr double kNanosecond = 1e-9;

// Rounded to whole nanoseconds, so that a plan survives the wire bit for bit.
absl::Duration FromSeconds(double seconds) {
  return absl::Nanoseconds(std::llround(seconds / kNanosecond));
}

// Highest share of a device that this rank's plan fills: its own GPU and its lenders.
double HighestLevel(const RankModel& model, const RankSolution& solution, Bytes usable,
                    Bytes fixed) {
  double level = static_cast<double>(solution.result.total_peak + fixed) /
                 static_cast<double>(std::max<Bytes>(1, usable));
  std::vector<Bytes> used(model.paths.size(), 0);
  std::vector<Bytes> scratch(model.paths.size(), 0);
  for (size_t b = 0; b < solution.choices.size(); ++b) {
    const Option option = MakeOption(model, model.blocks[b], solution.choices[b]);
    for (size_t p = 0; p < used.size(); ++p) {
      used[p] += option.uses[p];
      if (!option.scratch.empty()) scratch[p] = std::max(scratch[p], option.scratch[p]);
    }
  }
  for (size_t p = 0; p < used.size(); ++p) used[p] += scratch[p];
  for (size_t p = 0; p < used.size(); ++p) {
    if (model.paths[p].tier == Tier::kHost || used[p] == 0) continue;
    level = std::max(level, static_cast<double>(model.paths[p].taken + used[p]) /
                                static_cast<double>(std::max<Bytes>(1, model.paths[p].usable)));
  }
  return level;
}

// objective="level": the lowest highest level over a few tighter limits, then the fastest.
RankSolution MostLevel(const RankModel& model, RankSolution first, Bytes usable, Bytes fixed) {
  constexpr int kSteps = 8;
  RankSolution best = std::move(first);
  double best_level = HighestLevel(model, best, usable, fixed);
  RankModel tighter = model;
  const Bytes from = best.result.total_peak;
  for (int step = 1; step < kSteps; ++step) {
    tighter.total_limit = std::min(model.total_limit, from / kSteps * (kSteps - step));
    absl::optional<RankSolution> solution = SearchRank(tighter);
    if (!solution.has_value()) break;
    const double level = HighestLevel(model, *solution, usable, fixed);
    if (level >= best_level) continue;
    best_level = level;
    best = *std::move(solution);
  }
  return best;
}

StorageDecision PlaceOf(const RankModel& model, const ModelStorage& storage, int path,
                        std::vector<Bytes>* ends) {
  StorageDecision where;
  where.ordinal = storage.ordinal;
  if (path == kKept) return where;
  const size_t p = static_cast<size_t>(path);
  where.tier = model.paths[p].tier;
  where.device = model.paths[p].device;
  where.preferred_offset = (*ends)[p];
  (*ends)[p] += SlotBytes(storage.bytes);
  return where;
}

// Slots of what blocks put away as they run again: behind all others, where they take turns.
void PlaceScratch(const RankModel& model, const RankSolution& solution, std::vector<Bytes>* ends,
                  RankPlan* plan) {
  const std::vector<Bytes> begins = *ends;
  for (size_t b = 0; b < solution.choices.size(); ++b) {
    const ModelBlock& block = model.blocks[b];
    const BlockChoice& choice = solution.choices[b];
    std::vector<Bytes> next = begins;
    for (size_t s = 0; s < choice.where.size(); ++s) {
      if (!MovesAgain(block, choice, s)) continue;
      plan->blocks[b].storages[s] = PlaceOf(model, block.storages[s], choice.where[s], &next);
    }
    for (size_t p = 0; p < next.size(); ++p) (*ends)[p] = std::max((*ends)[p], next[p]);
  }
}

// Fills in storages, slots and leases. Slots come from a bump allocation over the step: all that
// waits between forward and backward coexists at the end of forward, so nothing smaller would do.
void PlaceStorages(const RankModel& model, const RankProblem& problem, const RankSolution& solution,
                   RankPlan* plan) {
  std::vector<Bytes> ends(model.paths.size(), 0);
  for (size_t b = 0; b < problem.blocks.size(); ++b) {
    const BlockProfile& profile = problem.blocks[b];
    const BlockChoice& choice = solution.choices[b];
    BlockDecision decision;
    decision.name = profile.name;
    decision.policy = choice.selected > 0 ? Policy::kSelective
                      : choice.recompute  ? Policy::kRecompute
                                          : Policy::kSave;
    decision.reason = BlockReason(model, profile, b, solution);
    Bytes bytes = 0;
    Bytes stable = 0;
    for (size_t s = 0; s < profile.storages.size(); ++s) {
      const StorageProfile& storage = profile.storages[s];
      bytes += storage.bytes;
      if (storage.stable) stable += storage.bytes;
    }
    const ModelBlock& block = model.blocks[b];
    for (size_t s = 0; s < block.storages.size(); ++s) {
      const ModelStorage& storage = block.storages[s];
      const bool waits = Waits(block, choice, s);
      if (storage.rank >= 0 && !waits) continue;
      const int path = waits ? choice.where[s] : kKept;
      StorageDecision where = PlaceOf(model, storage, path, &ends);
      if (waits) plan->bytes_by_tier[static_cast<int>(where.tier)] += storage.bytes;
      if (waits) plan->bytes_by_tier[static_cast<int>(Tier::kKeep)] += storage.stays;
      (storage.rank >= 0 ? decision.selected : decision.storages).push_back(std::move(where));
    }
    plan->recomputed_bytes += LoadOf(model, block, choice).remade;
    decision.confidence =
        bytes == 0 ? 1.0 : static_cast<double>(stable) / static_cast<double>(bytes);
    plan->blocks.push_back(std::move(decision));
  }
  PlaceScratch(model, solution, &ends, plan);
  for (size_t p = 0; p < ends.size(); ++p) {
    if (ends[p] == 0) continue;
    const Path& path = model.paths[p];
    plan->leases.push_back({path.device, path.tier, ends[p], path.node, path.staging});
  }
}

struct Searched {
  RankModel model;
  RankSolution solution;
};

// Other nodes lend where that makes the step shorter than what the rank's own node can lend, all
// that it costs counted: nothing else speaks for a near lender.
absl::StatusOr<Searched> SearchLenders(const PlanProblem& problem, size_t rank,
                                       const Taken& taken) {
  RankModel own = BuildRankModel(problem, rank, taken);
  absl::optional<RankSolution> near = SearchRank(own);
  const bool ideal =
      near.has_value() && near->result.exposed_s <= 0 && near->result.recompute_s <= 0;
  if (ideal) return Searched{std::move(own), *std::move(near)};
  RankModel all = BuildRankModel(problem, rank, taken, Lenders::kAllNodes);
  const bool crosses = std::any_of(all.paths.begin(), all.paths.end(),
                                   [](const Path& path) { return !path.node.empty(); });
  if (crosses) {
    absl::optional<RankSolution> far = SearchRank(all);
    if (far.has_value() && (!near.has_value() || far->result.step_s < near->result.step_s)) {
      return Searched{std::move(all), *std::move(far)};
    }
  }
  if (near.has_value()) return Searched{std::move(own), *std::move(near)};
  return NothingFits(problem, rank, crosses ? all : own);
}

// Where each lease is; what frames of other nodes take of the rank's GPU is in its peak, and what
// hftransfer keeps of the lender is lent to nobody else.
void CountAcrossNodes(const PlanProblem& problem, const std::string& gpu, RankPlan* plan,
                      Taken* taken) {
  bool crosses = false;
  for (LeaseNeed& lease : plan->leases) {
    const DeviceProfile& lender = DeviceOf(problem, lease.device);
    lease.node = lender.node;
    taken->leased[lease.device] += lease.bytes;
    if (lease.staging_bytes == 0) continue;
    crosses = true;
    plan->predicted_peak += lease.staging_bytes;
    taken->leased[lease.device] += lender.transfer_bytes;
  }
  if (crosses) plan->predicted_peak += DeviceOf(problem, gpu).transfer_bytes;
}

absl::StatusOr<RankPlan> PlanRank(const PlanProblem& problem, size_t rank, Taken* taken) {
  const RankProblem& of = problem.ranks[rank];
  HF_ASSIGN_OR_RETURN(Searched searched, SearchLenders(problem, rank, *taken));
  const RankModel& model = searched.model;
  RankSolution& solution = searched.solution;
  const Bytes fixed = of.resident_bytes + of.overhead_bytes + RoundingBytes(of);
  const Bytes usable = DeviceOf(problem, of.gpu).usable_bytes;
  if (problem.level_first) solution = MostLevel(model, std::move(solution), usable, fixed);
  RankPlan plan;
  plan.rank = of.rank;
  PlaceStorages(model, of, solution, &plan);
  plan.stash_limit = solution.limits.stash;
  plan.prefetch_limit = solution.limits.prefetch;
  for (const ModelBlock& block : model.blocks) plan.activation_bytes += block.bytes;
  plan.predicted_activation_peak = solution.result.activation_peak;
  plan.predicted_peak = solution.result.total_peak + fixed;
  plan.predicted_step = FromSeconds(solution.result.step_s);
  plan.predicted_exposed = FromSeconds(solution.result.exposed_s);
  plan.predicted_recompute = FromSeconds(solution.result.recompute_s);
  CountAcrossNodes(problem, of.gpu, &plan, taken);
  taken->own_peaks[of.gpu] = plan.predicted_peak;
  return plan;
}

// Over the GPUs of the problem: a lender's own use is what it does not lend.
double MaxOverMeanLevel(const PlanProblem& problem, const Taken& taken) {
  double highest = 0;
  double sum = 0;
  int gpus = 0;
  for (const DeviceProfile& device : problem.devices) {
    if (device.is_host || device.usable_bytes <= 0) continue;
    const auto peak = taken.own_peaks.find(device.uuid);
    const auto leased = taken.leased.find(device.uuid);
    Bytes used = peak != taken.own_peaks.end() ? peak->second : 0;
    if (leased != taken.leased.end()) used += leased->second;
    const double level = static_cast<double>(used) / static_cast<double>(device.usable_bytes);
    highest = std::max(highest, level);
    sum += level;
    ++gpus;
  }
  return sum > 0 ? highest / (sum / gpus) : 1.0;
}

class GreedyPlanner final : public Planner {
 public:
  absl::StatusOr<FramePlan> Plan(const PlanProblem& given) const override {
    HF_RETURN_IF_ERROR(CheckProblem(given));
    const PlanProblem problem = InCanonicalOrder(given);
    FramePlan plan;
    Taken taken;
    for (size_t rank = 0; rank < problem.ranks.size(); ++rank) {
      HF_ASSIGN_OR_RETURN(RankPlan of_rank, PlanRank(problem, rank, &taken));
      plan.ranks.push_back(std::move(of_rank));
    }
    plan.water_level_max_over_mean = MaxOverMeanLevel(problem, taken);
    plan.advice = Advice(problem, plan);
    plan.id = PlanId(problem, plan);
    return plan;
  }
};

}  // namespace

std::unique_ptr<Planner> MakeGreedyPlanner() { return std::make_unique<GreedyPlanner>(); }

}  // namespace hyperframes
