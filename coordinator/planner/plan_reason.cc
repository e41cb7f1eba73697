#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/plan_words.h"

namespace hyperframes {
namespace {

std::string Time(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.3gs", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.3gms", seconds * 1e3);
  return absl::StrFormat("%.3gus", seconds * 1e6);
}

// Compute between the end of a block's forward and the start of its backward.
double ComputeInBetween(const RankModel& model, size_t block) {
  double seconds = 0;
  for (size_t later = block + 1; later < model.blocks.size(); ++later) {
    seconds += model.blocks[later].forward_s + model.blocks[later].backward_s;
  }
  return seconds;
}

std::string Lender(const Path& path) {
  return path.node.empty() ? path.device : absl::StrCat(path.device, " on node ", path.node);
}

// "12MiB to SIM-a-1 and 4MiB to host:a", of what waits from forward to backward, or of what is put
// away as the block runs again.
std::string Destinations(const RankModel& model, const ModelBlock& block, const BlockChoice& choice,
                         bool again = false) {
  std::map<int, Bytes> bytes;
  for (size_t s = 0; s < block.storages.size(); ++s) {
    if (choice.where[s] == kKept || MovesAgain(block, choice, s) != again) continue;
    bytes[choice.where[s]] += block.storages[s].bytes;
  }
  std::string text;
  for (const auto& [path, moved] : bytes) {
    absl::StrAppend(&text, text.empty() ? "" : " and ", FormatBytes(moved), " to ",
                    Lender(model.paths[static_cast<size_t>(path)]));
  }
  return text;
}

std::string CopyTime(const BlockLoad& load) {
  double out = 0;
  double in = 0;
  for (int l = 0; l < kLanes; ++l) {
    out = std::max(out, load.out_s[l]);
    in = std::max(in, load.in_s[l]);
  }
  return absl::StrCat(Time(out), " of copy out and ", Time(in), " back");
}

// What moving all that may move to the fastest lender would take; empty without a lender.
std::string AlternativeMove(const RankModel& model, const ModelBlock& block) {
  std::string best;
  double fastest = 0;
  for (const Path& path : model.paths) {
    const double seconds =
        path.out_latency_s + static_cast<double>(block.bytes) / path.out_bytes_per_s;
    if (!best.empty() && seconds >= fastest) continue;
    fastest = seconds;
    best = absl::StrCat("moving it to ", Lender(path), " would take ", Time(seconds), " each way");
  }
  return best.empty() ? "no lender has room and a measured link" : best;
}

std::string StuckNote(const BlockProfile& profile) {
  Bytes stuck = 0;
  Bytes unstable = 0;
  std::string why;
  for (const StorageProfile& storage : profile.storages) {
    if (!storage.movable) {
      stuck += storage.bytes;
      if (why.empty()) why = storage.unmovable_reason.substr(0, 80);
    } else if (!storage.stable) {
      unstable += storage.bytes;
    }
  }
  std::string note;
  if (stuck > 0) {
    absl::StrAppend(&note, "; ", FormatBytes(stuck), " cannot move",
                    why.empty() ? "" : absl::StrCat(" (", why, ")"));
  }
  if (unstable > 0) {
    absl::StrAppend(&note, "; ", FormatBytes(unstable), " differed between two profiled steps");
  }
  return note;
}

// "selective: outputs of 3 of 5 expensive operators (12MiB, aten.mm first) are saved, the rest runs
// again in 2ms instead of 8ms".
std::string SelectiveReason(const ModelBlock& block, const BlockProfile& profile,
                            const BlockChoice& choice, const BlockLoad& load) {
  Bytes bytes = 0;
  int32_t first = 0;
  for (const ModelStorage& storage : block.storages) {
    if (storage.rank < 0 || storage.rank >= choice.selected) continue;
    bytes += storage.bytes;
    if (storage.rank == 0) first = storage.ordinal;
  }
  std::string op;
  for (const SelectiveStorage& storage : profile.selective) {
    if (storage.ordinal == first) op = storage.op.substr(0, 60);
  }
  return absl::StrCat("selective: outputs of ", choice.selected, " of ", profile.selective.size(),
                      " expensive operators (", FormatBytes(bytes), ", ", op,
                      " first) are saved, the rest runs again in ", Time(load.recompute_s),
                      " instead of ", Time(block.forward_s));
}

}  // namespace

std::string BlockReason(const RankModel& model, const BlockProfile& profile, size_t block,
                        const RankSolution& solution) {
  const ModelBlock& of = model.blocks[block];
  const BlockChoice& choice = solution.choices[block];
  const BlockLoad load = LoadOf(model, of, choice);
  const std::string moved = Destinations(model, of, choice);
  const std::string note = StuckNote(profile);
  if (choice.selected > 0) {
    return absl::StrCat(SelectiveReason(of, profile, choice, load), "; inputs of ",
                        FormatBytes(of.input_bytes),
                        moved.empty() ? "; nothing is moved"
                                      : absl::StrCat("; moved ", moved, ": ", CopyTime(load)),
                        note);
  }
  if (choice.recompute) {
    const std::string again = Destinations(model, of, choice, /*again=*/true);
    return absl::StrCat(
        "recomputed ", FormatBytes(of.bytes - of.input_bytes), " in ", Time(of.forward_s), " (",
        AlternativeMove(model, of), "); inputs of ", FormatBytes(of.input_bytes),
        moved.empty() ? " stay" : absl::StrCat(": ", moved, ", ", CopyTime(load)),
        again.empty() ? "" : absl::StrCat("; run again, it puts away ", again), note);
  }
  const std::string recompute = of.can_recompute
                                    ? absl::StrCat("recompute would cost ", Time(of.forward_s))
                                    : "it cannot be recomputed";
  if (!moved.empty()) {
    return absl::StrCat(
        "moved ", moved, ": ", CopyTime(load), ", ", Time(ComputeInBetween(model, block)),
        " of compute pass before it is needed again; ", recompute,
        load.kept > 0 ? absl::StrCat("; ", FormatBytes(load.kept), " stay") : "", note);
  }
  Bytes absent = 0;  // Gradients that come into being only in this backward or later.
  for (size_t b = 0; b <= block; ++b) absent += model.blocks[b].gradients;
  const Bytes limit = std::min(model.activation_limit, model.total_limit - of.transient + absent);
  return absl::StrCat("kept ", FormatBytes(of.bytes), ": the predicted peak of ",
                      FormatBytes(solution.result.activation_peak), " stays under ",
                      FormatBytes(limit), " with it; ", recompute, note);
}

}  // namespace hyperframes
