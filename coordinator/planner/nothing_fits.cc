#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/plan_words.h"
#include "coordinator/planner/rank_model.h"

namespace hyperframes {
namespace {

std::string Exactly(Bytes bytes) {
  return absl::StrCat(FormatBytes(bytes), " (", bytes, " bytes)");
}

// The floor is proven for one shape of plan; the search may know a lower one. Asks it until it
// fails.
Bytes Lowered(const RankModel& given, Bytes RankModel::*limit, Bytes StepResult::*peak,
              Bytes smallest) {
  constexpr int kMostTurns = 16;
  RankModel model = given;
  for (int turn = 0; turn < kMostTurns && smallest > 0; ++turn) {
    model.*limit = smallest - 1;
    const absl::optional<RankSolution> lower = SearchRank(model);
    if (!lower.has_value()) break;
    smallest = std::min(smallest - 1, (*lower).result.*peak);
  }
  return smallest;
}

// Least `peak` of a plan that keeps to the other limit; -1 when none does.
Bytes Smallest(const RankModel& given, Bytes RankModel::*limit, Bytes StepResult::*peak) {
  RankModel model = given;
  model.*limit = kNoLimit;
  Bytes smallest = -1;
  for (const WhenRunAgain what : {WhenRunAgain::kAllStays, WhenRunAgain::kAllMoves}) {
    for (const RankSolution& floor : FloorSolutions(model, what)) {
      if (floor.result.excess > 0) continue;
      if (smallest < 0 || floor.result.*peak < smallest) smallest = floor.result.*peak;
    }
  }
  return smallest < 0 ? smallest : Lowered(model, limit, peak, smallest);
}

}  // namespace

absl::Status NothingFits(const PlanProblem& problem, size_t rank, const RankModel& model) {
  const RankProblem& of = problem.ranks[rank];
  const DeviceProfile& gpu = DeviceOf(problem, of.gpu);
  const RankSolution keep = KeepAll(model);
  const std::string who = absl::StrCat("no plan fits rank ", of.rank, " on GPU ", of.gpu, ": ");
  const Bytes fixed = of.resident_bytes + RoundingBytes(of) + model.across_nodes;
  if (of.activation_budget >= 0) {
    const Bytes smallest =
        Smallest(model, &RankModel::activation_limit, &StepResult::activation_peak);
    if (smallest >= 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat(who, "its activations ask ", Exactly(keep.result.activation_peak),
                       ", activation_budget leaves ", Exactly(of.activation_budget),
                       "; the smallest activation_budget that works is ", Exactly(smallest)));
    }
  }
  RankModel without = model;
  without.activation_limit = kNoLimit;
  const Bytes smallest = Smallest(without, &RankModel::total_limit, &StepResult::total_peak);
  // What total_limit would be if only the GPU bound it.
  const Bytes free_on_gpu = gpu.usable_bytes - of.overhead_bytes - fixed;
  if (of.budget >= 0 && smallest <= free_on_gpu) {
    return absl::ResourceExhaustedError(absl::StrCat(
        who, "it asks ", Exactly(keep.result.total_peak + fixed), " (of them ",
        FormatBytes(of.resident_bytes), " weights, gradients and optimizer), budget leaves ",
        Exactly(of.budget), "; the smallest budget that works is ", Exactly(smallest + fixed)));
  }
  const Bytes least = smallest + fixed + of.overhead_bytes;
  return absl::ResourceExhaustedError(absl::StrCat(
      who, "it asks ", Exactly(keep.result.total_peak + fixed + of.overhead_bytes), ", ",
      Exactly(gpu.usable_bytes), " are usable, and no budget works there: at least ",
      Exactly(least), " are needed; ",
      fixed + of.overhead_bytes > gpu.usable_bytes
          ? "weights, gradients and optimizer alone are too large: ZeRO or LoRA first"
          : "lend more memory, shorten the sequence or shrink the batch"));
}

}  // namespace hyperframes
