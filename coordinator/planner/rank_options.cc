#include "coordinator/planner/rank_options.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace hyperframes {
namespace {

Bytes DisturbedBy(const BlockLoad& load) { return load.moved + load.remade + load.again_moved; }

// Indexes of what may move, largest first.
std::vector<size_t> Movable(const ModelBlock& block, const BlockChoice& choice, Bytes cap) {
  std::vector<size_t> movable;
  for (size_t s = 0; s < block.storages.size(); ++s) {
    const ModelStorage& storage = block.storages[s];
    if (!storage.can_move || storage.bytes <= 0 || storage.bytes > cap) continue;
    if (!Waits(block, choice, s)) continue;
    movable.push_back(s);
  }
  std::stable_sort(movable.begin(), movable.end(), [&block](size_t a, size_t b) {
    return block.storages[a].bytes > block.storages[b].bytes;
  });
  return movable;
}

BlockChoice Blank(const ModelBlock& block, bool recompute, int selected = 0) {
  return {recompute, std::vector<int>(block.storages.size(), kKept), selected};
}

// Every non-empty subset of a few storages.
void AddSubsets(const RankModel& model, const ModelBlock& block, bool recompute,
                const std::vector<size_t>& movable, std::vector<Option>* options) {
  const unsigned subsets = 1U << movable.size();
  for (unsigned subset = 1; subset < subsets; ++subset) {
    for (size_t p = 0; p < model.paths.size(); ++p) {
      BlockChoice choice = Blank(block, recompute);
      for (size_t m = 0; m < movable.size(); ++m) {
        if ((subset >> m & 1U) != 0) choice.where[movable[m]] = static_cast<int>(p);
      }
      options->push_back(MakeOption(model, block, std::move(choice)));
    }
  }
}

void AddPrefixes(const RankModel& model, const ModelBlock& block, bool recompute,
                 const std::vector<size_t>& movable, std::vector<Option>* options) {
  for (size_t count = 1; count <= movable.size();) {
    for (size_t p = 0; p < model.paths.size(); ++p) {
      BlockChoice choice = Blank(block, recompute);
      for (size_t m = 0; m < count; ++m) choice.where[movable[m]] = static_cast<int>(p);
      options->push_back(MakeOption(model, block, std::move(choice)));
    }
    if (count == movable.size()) break;
    count = std::min(movable.size(), count + std::max<size_t>(1, count / 2));
  }
}

// SELECTIVE for each k worth trying: all of it kept, or its larger half or all of it, with or
// without the inputs, to one path. Few on purpose: what lies between is found one by one.
void AddSelective(const RankModel& model, const ModelBlock& block, Bytes cap,
                  std::vector<Option>* options) {
  for (const int selected : block.prefixes) {
    const BlockChoice blank = Blank(block, true, selected);
    options->push_back(MakeOption(model, block, blank));
    const std::vector<size_t> movable = Movable(block, blank, cap);
    if (movable.empty()) continue;
    for (size_t p = 0; p < model.paths.size(); ++p) {
      const int path = static_cast<int>(p);
      BlockChoice all = blank;
      BlockChoice half = blank;
      BlockChoice stay = blank;  // The inputs do.
      for (size_t m = 0; m < movable.size(); ++m) {
        all.where[movable[m]] = path;
        if (2 * m < movable.size()) half.where[movable[m]] = path;
        if (!block.storages[movable[m]].is_input) stay.where[movable[m]] = path;
      }
      for (BlockChoice* choice : {&all, &half, &stay}) {
        options->push_back(MakeOption(model, block, std::move(*choice)));
      }
    }
  }
}

}  // namespace

Option MakeOption(const RankModel& model, const ModelBlock& block, BlockChoice choice) {
  Option option;
  option.load = LoadOf(model, block, choice);
  option.uses.assign(model.paths.size(), 0);
  for (size_t s = 0; s < block.storages.size(); ++s) {
    if (choice.where[s] == kKept) continue;
    if (MovesAgain(block, choice, s)) option.scratch.resize(model.paths.size(), 0);
    std::vector<Bytes>* const of = MovesAgain(block, choice, s) ? &option.scratch : &option.uses;
    (*of)[static_cast<size_t>(choice.where[s])] += SlotBytes(block.storages[s].bytes);
  }
  option.choice = std::move(choice);
  return option;
}

std::vector<Option> OptionsFor(const RankModel& model, const ModelBlock& block, Bytes cap) {
  constexpr size_t kFewStorages = 3;
  std::vector<Option> options = {MakeOption(model, block, Blank(block, false))};
  for (const bool recompute : {false, true}) {
    if (recompute && !block.can_recompute) break;
    if (recompute) options.push_back(MakeOption(model, block, Blank(block, true)));
    const std::vector<size_t> movable = Movable(block, Blank(block, recompute), cap);
    if (movable.size() <= kFewStorages) {
      AddSubsets(model, block, recompute, movable, &options);
    } else {
      AddPrefixes(model, block, recompute, movable, &options);
    }
  }
  if (block.can_recompute) AddSelective(model, block, cap, &options);
  return options;
}

SearchState::SearchState(const RankModel& model) : model_(model), used_(model.paths.size(), 0) {
  for (const ModelBlock& block : model.blocks) {
    Option keep = MakeOption(model, block, Blank(block, false));
    choices_.push_back(std::move(keep.choice));
    loads_.push_back(keep.load);
    uses_.push_back(std::move(keep.uses));
  }
  scratch_.resize(model.blocks.size());
  result_ = SimulateStep(model_, loads_, limits_);
}

void SearchState::set_limits(const CopyLimits& limits) {
  limits_ = limits;
  result_ = SimulateStep(model_, loads_, limits_);
}

void SearchState::Set(size_t block, const Option& option) {
  disturbed_ = DisturbedWith(block, option);
  for (size_t p = 0; p < used_.size(); ++p) used_[p] += option.uses[p] - uses_[block][p];
  choices_[block] = option.choice;
  loads_[block] = option.load;
  uses_[block] = option.uses;
  scratch_[block] = option.scratch;
  result_ = SimulateStep(model_, loads_, limits_);
}

Bytes SearchState::ScratchOf(size_t p, size_t without) const {
  Bytes most = 0;
  for (size_t b = 0; b < scratch_.size(); ++b) {
    if (b != without && !scratch_[b].empty()) most = std::max(most, scratch_[b][p]);
  }
  return most;
}

bool SearchState::HasRoom(size_t block, const Option& option) const {
  for (size_t p = 0; p < used_.size(); ++p) {
    const Bytes more = option.uses[p] - uses_[block][p];
    const Bytes scratch = option.scratch.empty() ? 0 : option.scratch[p];
    if (more <= 0 && scratch == 0) continue;
    const Bytes most = std::max(scratch, ScratchOf(p, block));
    if (used_[p] + more + most > model_.paths[p].room) return false;
  }
  return true;
}

bool SearchState::RoomHolds() const {
  for (size_t p = 0; p < used_.size(); ++p) {
    if (used_[p] + ScratchOf(p, scratch_.size()) > model_.paths[p].room) return false;
  }
  return true;
}

StepResult SearchState::Try(size_t block, const Option& option, double most_excess) {
  const BlockLoad current = std::exchange(loads_[block], option.load);
  StepResult result;
  SimulateBytes(model_, loads_, limits_, &result);
  if (result.excess <= most_excess) SimulateSeconds(model_, loads_, limits_, &result);
  loads_[block] = current;
  return result;
}

double SearchState::Level(const Option& option) const {
  double level = 0;
  for (size_t p = 0; p < used_.size(); ++p) {
    if (option.uses[p] == 0) continue;
    const Path& path = model_.paths[p];
    level = std::max(level, static_cast<double>(path.taken + used_[p] + option.uses[p]) /
                                static_cast<double>(std::max<Bytes>(1, path.usable)));
  }
  return level;
}

Bytes SearchState::DisturbedWith(size_t block, const Option& option) const {
  return disturbed_ - DisturbedBy(loads_[block]) + DisturbedBy(option.load);
}

}  // namespace hyperframes
