#include "coordinator/planner/rank_floors.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

namespace hyperframes {
namespace {

// Puts storage `s` of the block where there is room first, if anywhere.
void MoveIfRoom(const RankModel& model, const SearchState& state, size_t b, size_t s,
                BlockChoice* choice) {
  for (size_t p = 0; p < model.paths.size(); ++p) {
    choice->where[s] = static_cast<int>(p);
    if (state.HasRoom(b, MakeOption(model, model.blocks[b], *choice))) return;
  }
  choice->where[s] = kKept;
}

bool IsMovable(const ModelStorage& storage, Bytes cap) {
  return storage.can_move && storage.bytes > 0 && storage.bytes <= cap;
}

// What the block leaves when it runs again and backward is known to read, largest first.
std::vector<size_t> LeftAgain(const ModelBlock& block, Bytes cap) {
  std::vector<size_t> left;
  for (size_t s = 0; s < block.storages.size(); ++s) {
    const ModelStorage& storage = block.storages[s];
    if (storage.rank >= 0 || storage.is_input || storage.read_at == kNeverRead) continue;
    if (IsMovable(storage, cap)) left.push_back(s);
  }
  std::stable_sort(left.begin(), left.end(), [&block](size_t a, size_t b) {
    return block.storages[a].bytes > block.storages[b].bytes;
  });
  return left;
}

RankSolution Floor(const RankModel& model, Bytes cap, WhenRunAgain what) {
  SearchState state(model);
  state.set_limits({0, 0, false});
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const ModelBlock& block = model.blocks[b];
    BlockChoice choice{block.can_recompute, std::vector<int>(block.storages.size(), kKept)};
    for (size_t s = 0; s < block.storages.size(); ++s) {
      if (Waits(block, choice, s) && IsMovable(block.storages[s], cap)) {
        MoveIfRoom(model, state, b, s, &choice);
      }
    }
    state.Set(b, MakeOption(model, block, std::move(choice)));
  }
  if (what == WhenRunAgain::kAllStays) return Take(state);
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const ModelBlock& block = model.blocks[b];
    if (!block.can_recompute || block.rerun == 0 || block.phases.empty()) continue;
    BlockChoice choice = state.choices()[b];
    for (const size_t s : LeftAgain(block, cap)) MoveIfRoom(model, state, b, s, &choice);
    state.Set(b, MakeOption(model, block, std::move(choice)));
  }
  return Take(state);
}

}  // namespace

RankSolution Take(const SearchState& state) {
  return {state.choices(), state.limits(), state.result()};
}

RankSolution KeepAll(const RankModel& model) { return Take(SearchState(model)); }

std::vector<Bytes> MovableSizes(const RankModel& model, bool inputs_only) {
  std::set<Bytes> sizes;
  for (const ModelBlock& block : model.blocks) {
    for (const ModelStorage& storage : block.storages) {
      const bool counts = storage.rank < 0 && storage.can_move && storage.bytes > 0;
      if (counts && (storage.is_input || !inputs_only)) sizes.insert(storage.bytes);
    }
  }
  return {sizes.rbegin(), sizes.rend()};
}

std::vector<RankSolution> FloorSolutions(const RankModel& model, WhenRunAgain what) {
  std::vector<Bytes> caps = MovableSizes(model, /*inputs_only=*/false);
  // Many sizes are only as good as a few: the windows grow with the cap, what it frees hardly.
  constexpr size_t kMostCaps = 32;
  if (caps.size() > kMostCaps) caps.resize(kMostCaps);
  if (model.paths.empty()) caps.clear();
  caps.push_back(0);
  std::vector<RankSolution> floors = {KeepAll(model)};
  for (const Bytes cap : caps) floors.push_back(Floor(model, cap, what));
  return floors;
}

}  // namespace hyperframes
