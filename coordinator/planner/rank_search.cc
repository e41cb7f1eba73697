#include "coordinator/planner/rank_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "coordinator/planner/rank_floors.h"
#include "coordinator/planner/rank_options.h"

namespace hyperframes {
namespace {

// Seconds closer than this are equal: no decision hangs on rounding.
constexpr double kSameSeconds = 1e-12;
// Bounds of the improvement pass, in simulated blocks.
constexpr int kMostTriedBlocks = 200000;

using AllOptions = std::vector<std::vector<Option>>;

AllOptions OptionsOfAll(const RankModel& model, Bytes cap) {
  AllOptions all;
  for (const ModelBlock& block : model.blocks) all.push_back(OptionsFor(model, block, cap));
  return all;
}

Bytes LargestFrame(const RankModel& model, Bytes cap) {
  Bytes largest = 0;
  for (const ModelBlock& block : model.blocks) {
    Bytes frame = 0;
    for (const ModelStorage& storage : block.storages) {
      const bool counts = storage.rank < 0 && storage.can_move;
      if (counts && storage.bytes <= cap) frame += storage.bytes;
    }
    largest = std::max(largest, frame);
  }
  return largest;
}

// A queue of changes by added seconds per byte of excess removed. Scores grow stale as the state
// changes; the best one is priced again before it is taken, since most keep their order.
class GreedyRun {
 public:
  GreedyRun(SearchState* state, const AllOptions& options) : state_(state), options_(options) {}

  // True when the state fits the limits in the end, in at most about `most_seconds`.
  bool Run(double most_seconds) {
    for (size_t b = 0; b < options_.size(); ++b) PushAll(b);
    while (!state_->fits() && !queue_.empty()) {
      Entry best = *queue_.begin();
      queue_.erase(queue_.begin());
      if (best.generation != generation_[best.block]) continue;
      if (best.version != version_) {
        if (!Price(&best)) continue;
        if (!IsNearlyBest(best)) {
          queue_.insert(best);
          continue;
        }
      }
      state_->Set(best.block, options_[best.block][best.option]);
      if (state_->result().step_s > most_seconds) return false;
      ++version_;
      ++generation_[best.block];
      PushAll(best.block);
    }
    return state_->fits();
  }

 private:
  struct Entry {
    double score = 0;
    double minus_gain = 0;
    double level = 0;
    size_t block = 0;
    size_t option = 0;
    int version = 0;
    int generation = 0;
    bool operator<(const Entry& other) const {
      return std::tie(score, minus_gain, level, block, option) <
             std::tie(other.score, other.minus_gain, other.level, other.block, other.option);
    }
  };

  void PushAll(size_t block) {
    for (size_t o = 0; o < options_[block].size(); ++o) {
      Entry entry;
      entry.block = block;
      entry.option = o;
      if (Price(&entry)) queue_.insert(entry);
    }
  }

  // Scores the entry in the present state; false when it brings nothing.
  bool Price(Entry* entry) {
    const Option& option = options_[entry->block][entry->option];
    if (!state_->HasRoom(entry->block, option)) return false;
    const double excess = state_->result().excess;
    const StepResult tried = state_->Try(entry->block, option, excess);
    const double gain = excess - tried.excess;
    // A change that removes nothing now removes nothing later: the points over the limit only
    // become fewer.
    if (gain <= 0) return false;
    double cost = tried.step_s - state_->result().step_s;
    if (cost < kSameSeconds && cost > -kSameSeconds) cost = 0;
    entry->score = cost / gain;
    entry->minus_gain = -gain;
    entry->level = state_->Level(option);
    entry->version = version_;
    entry->generation = generation_[entry->block];
    return true;
  }

  // Close enough to the best stale score: a hundred equal blocks would otherwise all be priced
  // again for every single change.
  bool IsNearlyBest(const Entry& entry) const {
    constexpr double kNear = 0.03;
    if (queue_.empty()) return true;
    return entry.score <= queue_.begin()->score + kNear * std::abs(entry.score);
  }

  SearchState* const state_;
  const AllOptions& options_;
  std::set<Entry> queue_;
  std::vector<int> generation_ = std::vector<int>(options_.size(), 0);
  int version_ = 0;
};

// True when `a` is the better end: fits first, then seconds, then less moved and recomputed.
bool Better(const StepResult& a, Bytes a_disturbed, const StepResult& b, Bytes b_disturbed) {
  if (a.step_s < b.step_s - kSameSeconds) return true;
  if (a.step_s > b.step_s + kSameSeconds) return false;
  return a_disturbed < b_disturbed;
}

// Undoes what is no longer needed and swaps what got cheaper, while everything fits.
class Improvement {
 public:
  Improvement(const RankModel& model, SearchState* state, const AllOptions& options)
      : model_(model),
        state_(state),
        options_(options),
        most_tries_(kMostTriedBlocks / std::max<int>(1, static_cast<int>(options.size()))) {}

  void Run() {
    while (tries_ < most_tries_) {
      bool changed = false;
      for (size_t b = 0; b < options_.size(); ++b) {
        changed = BestOf(b) || changed;
        changed = OneByOne(b) || changed;
        changed = OneOperator(b) || changed;
      }
      if (!changed && !Exchanges() && !Pairs()) break;
    }
  }

 private:
  bool Accepts(size_t block, const Option& option) {
    ++tries_;
    if (!state_->HasRoom(block, option)) return false;
    const StepResult tried = state_->Try(block, option, /*most_excess=*/0);
    return tried.excess <= 0 && Better(tried, state_->DisturbedWith(block, option),
                                       state_->result(), state_->disturbed());
  }

  bool BestOf(size_t block) {
    bool changed = false;
    for (const Option& option : options_[block]) {
      if (tries_ >= most_tries_) break;
      if (!Accepts(block, option)) continue;
      state_->Set(block, option);
      changed = true;
    }
    return changed;
  }

  // Storages of one block back home, or elsewhere, one at a time.
  bool OneByOne(size_t block) {
    bool changed = false;
    const ModelBlock& of = model_.blocks[block];
    for (size_t s = 0; s < of.storages.size() && tries_ < most_tries_; ++s) {
      if (state_->choices()[block].where[s] == kKept) continue;
      for (int p = kKept; p < static_cast<int>(model_.paths.size()); ++p) {
        BlockChoice choice = state_->choices()[block];
        if (choice.where[s] == p) continue;
        choice.where[s] = static_cast<int>(p);
        const Option option = MakeOption(model_, of, std::move(choice));
        if (!Accepts(block, option)) continue;
        state_->Set(block, option);
        changed = true;
      }
    }
    return changed;
  }

  // Under SELECTIVE one operator more or less is saved, the last of them by worth.
  bool OneOperator(size_t block) {
    const ModelBlock& of = model_.blocks[block];
    const int most = static_cast<int>(of.selective_s.size()) - 1;
    bool changed = false;
    for (const int step : {1, -1}) {
      for (int p = kKept; p < static_cast<int>(model_.paths.size()); ++p) {
        BlockChoice choice = state_->choices()[block];
        const int selected = choice.selected + step;
        if (choice.selected == 0 || selected < of.least_selected || selected > most) break;
        choice.selected = selected;
        const size_t first = of.storages.size() - static_cast<size_t>(most);
        const size_t s = first + static_cast<size_t>(step > 0 ? selected - 1 : selected);
        if (p != kKept && (step < 0 || !of.storages[s].can_move)) break;
        choice.where[s] = p;
        const Option option = MakeOption(model_, of, std::move(choice));
        if (!Accepts(block, option)) continue;
        state_->Set(block, option);
        changed = true;
      }
    }
    return changed;
  }

  // Two storages change places: a lender that is full takes the one that gains more by it.
  bool Exchanges() {
    for (size_t a = 0; a < options_.size(); ++a) {
      for (size_t s = 0; s < model_.blocks[a].storages.size(); ++s) {
        if (!MayMove(a, s)) continue;
        for (size_t b = a; b < options_.size(); ++b) {
          for (size_t t = 0; t < model_.blocks[b].storages.size(); ++t) {
            if (tries_ >= most_tries_) return false;
            if (MayMove(b, t) && Exchange(a, s, b, t)) return true;
          }
        }
      }
    }
    return false;
  }

  bool MayMove(size_t block, size_t s) const {
    const ModelBlock& of = model_.blocks[block];
    return of.storages[s].can_move && Waits(of, state_->choices()[block], s);
  }

  bool Exchange(size_t a, size_t s, size_t b, size_t t) {
    const BlockChoice before_a = state_->choices()[a];
    const BlockChoice before_b = state_->choices()[b];
    if (before_a.where[s] == before_b.where[t]) return false;
    ++tries_;
    const StepResult held = state_->result();
    const Bytes held_disturbed = state_->disturbed();
    Place(a, s, before_b.where[t]);
    Place(b, t, before_a.where[s]);
    if (state_->fits() && state_->RoomHolds() &&
        Better(state_->result(), state_->disturbed(), held, held_disturbed)) {
      return true;
    }
    state_->Set(a, MakeOption(model_, model_.blocks[a], before_a));
    state_->Set(b, MakeOption(model_, model_.blocks[b], before_b));
    return false;
  }

  void Place(size_t block, size_t s, int where) {
    BlockChoice choice = state_->choices()[block];
    choice.where[s] = where;
    state_->Set(block, MakeOption(model_, model_.blocks[block], std::move(choice)));
  }

  // Two blocks changed together: one gives memory, the other takes it.
  bool Pairs() {
    for (size_t a = 0; a < options_.size(); ++a) {
      const Option before = MakeOption(model_, model_.blocks[a], state_->choices()[a]);
      const StepResult held = state_->result();
      const Bytes held_disturbed = state_->disturbed();
      for (const Option& give : options_[a]) {
        if (tries_ >= most_tries_) return false;
        if (!state_->HasRoom(a, give)) continue;
        state_->Set(a, give);
        for (size_t b = 0; b < options_.size(); ++b) {
          if (b != a && TakeFrom(b, held, held_disturbed)) return true;
        }
        state_->Set(a, before);
      }
    }
    return false;
  }

  bool TakeFrom(size_t block, const StepResult& held, Bytes held_disturbed) {
    for (const Option& option : options_[block]) {
      ++tries_;
      if (tries_ >= most_tries_) return false;
      if (!state_->HasRoom(block, option)) continue;
      const StepResult tried = state_->Try(block, option, /*most_excess=*/0);
      if (tried.excess > 0) continue;
      if (!Better(tried, state_->DisturbedWith(block, option), held, held_disturbed)) continue;
      state_->Set(block, option);
      return true;
    }
    return false;
  }

  const RankModel& model_;
  SearchState* const state_;
  const AllOptions& options_;
  const int most_tries_;
  int tries_ = 0;
};

Bytes LargestMoved(const RankModel& model, const std::vector<BlockChoice>& choices) {
  Bytes largest = 0;
  for (size_t b = 0; b < choices.size(); ++b) {
    const BlockLoad load = LoadOf(model, model.blocks[b], choices[b]);
    largest = std::max({largest, load.largest_moved, load.again_largest});
  }
  return largest;
}

// Tries a few stash and prefetch limits for fixed decisions.
void TuneLimits(const RankModel& model, SearchState* state) {
  const Bytes largest = LargestMoved(model, state->choices());
  const Bytes frame = LargestFrame(model, kNoLimit);
  const std::set<Bytes> sizes = {largest, 2 * largest, 4 * largest, frame, 2 * frame};
  CopyLimits best = state->limits();
  StepResult best_result = state->result();
  for (const Bytes stash : sizes) {
    for (const Bytes prefetch : sizes) {
      if (largest == 0 && (stash > 0 || prefetch > 0)) continue;
      state->set_limits({stash, prefetch, false});
      const bool better = state->result().step_s < best_result.step_s - kSameSeconds;
      if (!state->fits() || !better) continue;
      best = state->limits();
      best_result = state->result();
    }
  }
  state->set_limits(best);
}

void Load(const RankModel& model, const RankSolution& solution, SearchState* state) {
  state->set_limits(solution.limits);
  for (size_t b = 0; b < solution.choices.size(); ++b) {
    state->Set(b, MakeOption(model, model.blocks[b], solution.choices[b]));
  }
}

RankSolution Improve(const RankModel& model, const RankSolution& from) {
  SearchState state(model);
  Load(model, from, &state);
  const AllOptions options = OptionsOfAll(model, kNoLimit);
  TuneLimits(model, &state);
  Improvement(model, &state, options).Run();
  TuneLimits(model, &state);
  return Take(state);
}

// Sizes of windows worth searching with storages up to `cap`, the one most likely best first. What
// lies between is found by TuneLimits.
std::vector<Bytes> WindowsFor(const RankModel& model, Bytes cap) {
  const Bytes frame = LargestFrame(model, cap);
  if (frame == cap) return {cap};
  // Between them lies what a block that is SELECTIVE needs back at once.
  constexpr size_t kMostBlocks = 64;
  if (model.blocks.size() > kMostBlocks) return {frame, cap};
  std::vector<Bytes> windows = {frame};
  for (const Bytes part : {frame / 3 * 2, frame / 2, frame / 3, frame / 4}) {
    if (part > cap) windows.push_back(part);
  }
  windows.push_back(cap);
  return windows;
}

std::vector<RankSolution> GreedySolutions(const RankModel& model) {
  std::vector<Bytes> caps = {0};
  const std::vector<Bytes> sizes = MovableSizes(model, /*inputs_only=*/false);
  const std::vector<Bytes> inputs = MovableSizes(model, /*inputs_only=*/true);
  if (!sizes.empty() && !model.paths.empty()) {
    caps.push_back(sizes.front());
    if (sizes.size() > 2) caps.push_back(sizes[sizes.size() / 2]);
    if (!inputs.empty()) caps.push_back(inputs.front());
  }
  std::sort(caps.rbegin(), caps.rend());
  caps.erase(std::unique(caps.begin(), caps.end()), caps.end());
  std::vector<RankSolution> found;
  // A run that is already this much slower than another's end will not be improved past it.
  constexpr double kHopeless = 1.1;
  double fastest = std::numeric_limits<double>::infinity();
  for (const Bytes cap : caps) {
    const AllOptions options = OptionsOfAll(model, cap);
    for (const Bytes window : WindowsFor(model, cap)) {
      SearchState state(model);
      state.set_limits({window, window, /*charge_in_full=*/true});
      if (!GreedyRun(&state, options).Run(fastest * kHopeless)) continue;
      fastest = std::min(fastest, state.result().step_s);
      state.set_limits({window, window, /*charge_in_full=*/false});
      found.push_back(Take(state));
    }
  }
  return found;
}

std::vector<RankSolution> FittingFloors(const RankModel& model, WhenRunAgain what) {
  std::vector<RankSolution> floors = FloorSolutions(model, what);
  const auto misses = [](const RankSolution& solution) { return solution.result.excess > 0; };
  floors.erase(std::remove_if(floors.begin(), floors.end(), misses), floors.end());
  return floors;
}

Bytes Disturbed(const RankModel& model, const RankSolution& solution) {
  SearchState state(model);
  Load(model, solution, &state);
  return state.disturbed();
}

}  // namespace

absl::optional<RankSolution> SearchRank(const RankModel& model) {
  const RankSolution keep = KeepAll(model);
  if (keep.result.excess <= 0) return keep;
  std::vector<RankSolution> found = GreedySolutions(model);
  // Near the least budget the floor is the better place to start from: greedy reaches it by changes
  // that it cannot take back together.
  std::vector<RankSolution> floors = FittingFloors(model, WhenRunAgain::kAllStays);
  if (found.empty() && floors.empty()) floors = FittingFloors(model, WhenRunAgain::kAllMoves);
  if (found.empty() && floors.empty()) return absl::nullopt;
  const auto by_time = [](const RankSolution& a, const RankSolution& b) {
    return a.result.step_s < b.result.step_s;
  };
  std::stable_sort(found.begin(), found.end(), by_time);
  std::stable_sort(floors.begin(), floors.end(), by_time);
  // Small problems are cheap enough to start from every end of the search.
  const size_t improved = model.blocks.size() <= 16 ? 8 : 2;
  if (found.size() > improved) found.resize(improved);
  if (floors.size() > improved) floors.resize(improved);
  found.insert(found.end(), floors.begin(), floors.end());
  for (RankSolution& solution : found) solution = Improve(model, solution);
  size_t best = 0;
  for (size_t i = 1; i < found.size(); ++i) {
    if (Better(found[i].result, Disturbed(model, found[i]), found[best].result,
               Disturbed(model, found[best]))) {
      best = i;
    }
  }
  return std::move(found[best]);
}

}  // namespace hyperframes
