#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/plan_words.h"
#include "coordinator/planner/rank_model.h"

namespace hyperframes {
namespace {

// What a kind of link promises, bytes per second in one direction. 0: no promise known.
double Promise(const std::string& kind) {
  if (absl::StrContains(kind, "nvlink")) return 150e9;
  if (absl::StrContains(kind, "pcie")) return 25e9;
  return 0;
}

std::string LinkWarnings(const PlanProblem& problem) {
  constexpr double kPcie3 = 14e9;
  constexpr int kMostWarnings = 3;
  int warned = 0;
  std::string text;
  for (const LinkProfile& link : problem.links) {
    const double promise = Promise(link.kind);
    const bool ethernet = absl::StrContains(link.kind, "ethernet");
    const bool broken = promise > 0 && link.bytes_per_second < promise / 10;
    const bool old = absl::StrContains(link.kind, "pcie") && link.bytes_per_second < kPcie3;
    if (!ethernet && !broken && !old) continue;
    if (++warned > kMostWarnings) continue;
    absl::StrAppend(
        &text, " Link ", link.from, " to ", link.to, " (", link.kind, ") carries ",
        absl::StrFormat("%.3gGB/s", link.bytes_per_second / 1e9),
        broken ? absl::StrFormat(", under a tenth of its promise of %.3gGB/s", promise / 1e9) : "",
        ": prefer checkpointing over moving through it.");
  }
  if (warned > kMostWarnings) {
    absl::StrAppend(&text, " ", warned - kMostWarnings, " more links are as slow.");
  }
  return text;
}

std::string Size(const char* letter, Bytes bytes) {
  return absl::StrCat(letter, "=", FormatBytes(bytes));
}

}  // namespace

std::string Advice(const PlanProblem& problem, const FramePlan& plan) {
  Bytes activations = 0;
  Bytes parameters = 0;
  Bytes usable = 0;
  bool anything_moved = false;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlan& rank = plan.ranks[r];
    activations = std::max(activations, rank.activation_bytes);
    parameters = std::max(parameters, problem.ranks[r].resident_bytes);
    const Bytes of_gpu = DeviceOf(problem, problem.ranks[r].gpu).usable_bytes;
    usable = r == 0 ? of_gpu : std::min(usable, of_gpu);
    anything_moved = anything_moved || rank.bytes_by_tier[1] + rank.bytes_by_tier[2] > 0 ||
                     rank.recomputed_bytes > 0;
  }
  const std::string sizes =
      absl::StrCat(Size("A", activations), ", ", Size("P", parameters), ", ", Size("M", usable));
  const std::string thresholds = "(worth it from A >= 2P, modest from A >= P/2, small below)";
  std::string text;
  if (!anything_moved) {
    text = absl::StrCat("Leave it off: everything fits and everything is kept. ", sizes, " ",
                        thresholds, ".");
  } else if (activations >= 2 * parameters) {
    text = absl::StrCat("Worth it: activations are at least twice the rest. ", sizes, " ",
                        thresholds, ".");
  } else if (activations >= parameters / 2) {
    text = absl::StrCat("Modest: activations are near the rest. ", sizes, " ", thresholds, ".");
  } else {
    text = absl::StrCat("Small: activations are less than half of the rest; leave it off unless ",
                        "the budget is fixed, and look at ZeRO or LoRA for the rest. ", sizes, " ",
                        thresholds, ".");
  }
  return absl::StrCat(text, LinkWarnings(problem));
}

}  // namespace hyperframes
