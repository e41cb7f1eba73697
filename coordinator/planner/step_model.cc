#include "coordinator/planner/step_model.h"

#include <algorithm>
#include <cstddef>

namespace hyperframes {
namespace {

// One direction of one of the engine's copy lanes as fluid: bytes under way and the seconds they
// need.
struct Lane {
  double bytes = 0;
  double seconds = 0;
  double rate = 0;  // Bytes per second, of what is under way.

  void Add(double more_bytes, double more_seconds) {
    bytes += more_bytes;
    seconds += more_seconds;
    rate = seconds > 0 ? bytes / seconds : 0;
  }
  void Advance(double by) {
    if (by >= seconds) {
      *this = Lane();
      return;
    }
    bytes -= rate * by;
    seconds -= by;
  }
};

// Collects memory at every point of the step.
class Memory {
 public:
  Memory(const RankModel& model, StepResult* result) : model_(model), result_(result) {}

  // `total`: activations and working memory, less gradients that count as resident and are not
  // there yet.
  void At(Bytes activation, Bytes total) {
    result_->activation_peak = std::max(result_->activation_peak, activation);
    result_->total_peak = std::max(result_->total_peak, total);
    const Bytes over = std::max(activation - model_.activation_limit, total - model_.total_limit);
    if (over > 0) result_->excess += static_cast<double>(over);
  }

 private:
  const RankModel& model_;
  StepResult* const result_;
};

// Bytes that a window of the engine can hold when `moved` bytes were handed to it so far.
Bytes Window(Bytes limit, Bytes moved, Bytes largest, bool in_full) {
  const Bytes most = std::max(limit, largest);
  return in_full ? most : std::min(most, moved);
}

// How long the compute stream waits until the lanes hold at most `limit` bytes.
double WaitForStash(Lane* lanes, double limit) {
  double waited = 0;
  if (lanes[0].bytes + lanes[1].bytes <= limit) return 0;
  // Each turn empties a lane or reaches the limit.
  for (int turn = 0; turn <= kLanes; ++turn) {
    double bytes = 0;
    double rate = 0;
    double next_empty = 0;
    for (int l = 0; l < kLanes; ++l) {
      if (lanes[l].seconds <= 0) continue;
      bytes += lanes[l].bytes;
      rate += lanes[l].rate;
      next_empty = next_empty == 0 ? lanes[l].seconds : std::min(next_empty, lanes[l].seconds);
    }
    if (bytes <= limit || rate <= 0) break;
    const double step = std::min(next_empty, (bytes - limit) / rate);
    for (int l = 0; l < kLanes; ++l) lanes[l].Advance(step);
    waited += step;
  }
  return waited;
}

// Share of what a block moves that it has produced early enough for the copy to hide behind its own
// forward, where blocks are known to read and write one by one.
constexpr double kProducedEarly = 0.6;

void ForwardSeconds(const RankModel& model, const std::vector<BlockLoad>& loads,
                    const CopyLimits& limits, Lane* lanes, StepResult* result) {
  Bytes largest = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    const BlockLoad& load = loads[i];
    double compute = model.blocks[i].forward_s;
    const bool by_and_by = !model.blocks[i].phases.empty() && !model.blocks[i].all_at_once;
    const double early = by_and_by ? kProducedEarly : 0;
    for (int l = 0; l < kLanes; ++l) {
      if (load.lane_bytes[l] > 0) {
        lanes[l].Add(early * static_cast<double>(load.lane_bytes[l]), early * load.out_s[l]);
      }
      compute += model.lane_slowdown[l].out * std::min(lanes[l].seconds, model.blocks[i].forward_s);
    }
    result->step_s += compute;
    for (int l = 0; l < kLanes; ++l) {
      if (lanes[l].seconds > 0) lanes[l].Advance(compute);
      if (load.lane_bytes[l] == 0) continue;
      lanes[l].Add((1 - early) * static_cast<double>(load.lane_bytes[l]),
                   (1 - early) * load.out_s[l]);
    }
    if (load.moved == 0) continue;
    largest = std::max(largest, load.largest_moved);
    const double waited = WaitForStash(lanes, static_cast<double>(std::max(limits.stash, largest)));
    result->step_s += waited;
    result->exposed_s += waited;
  }
}

// Share of a block's backward that hides its own reloads, where it is known to read one by one.
constexpr double kHidden = 0.8;

// The reload lanes: bytes fetched ahead of the block that runs.
class Reloads {
 public:
  Reloads(const std::vector<BlockLoad>& loads, Bytes limit, const Lane* copy_outs) {
    double all = 0;
    for (int l = 0; l < kLanes; ++l) {
      double seconds = 0;
      for (const BlockLoad& load : loads) {
        left_[l] += static_cast<double>(load.lane_bytes[l]);
        seconds += load.in_s[l];
      }
      rate_[l] = seconds > 0 ? left_[l] / seconds : 0;
      seconds_per_byte_[l] = seconds > 0 ? seconds / left_[l] : 0;
      all += left_[l];
      copy_out_s_[l] = copy_outs[l].seconds;
    }
    for (int l = 0; l < kLanes; ++l) {
      most_ahead_[l] = all > 0 ? static_cast<double>(limit) * (left_[l] / all) : 0;
    }
  }

  // Seconds that compute waits for the reloads of `load`, of which `hidden_s` of its backward can
  // hide a part: a storage is waited for only where it is read.
  double Need(const BlockLoad& load, double hidden_s) {
    double wait = 0;
    double missing_s[kLanes] = {};
    for (int l = 0; l < kLanes; ++l) {
      if (load.lane_bytes[l] == 0) continue;
      const double bytes = static_cast<double>(load.lane_bytes[l]);
      const double first = std::min(bytes, static_cast<double>(load.largest_moved));
      const double seconds_per_byte = load.in_s[l] / bytes;
      missing_s[l] = std::max(0.0, bytes - ahead_[l]) * seconds_per_byte;
      const double first_s = std::max(0.0, first - ahead_[l]) * seconds_per_byte;
      // A reload starts after its own copy-out has finished.
      wait = std::max(wait, copy_out_s_[l] + std::max(first_s, missing_s[l] - hidden_s));
      ahead_[l] = std::max(0.0, ahead_[l] - bytes);
      left_[l] = std::max(0.0, left_[l] - bytes);
    }
    for (int l = 0; l < kLanes; ++l) {
      busy_s_[l] = std::max(0.0, missing_s[l] - std::max(0.0, wait - copy_out_s_[l]));
      copy_out_s_[l] = std::max(0.0, copy_out_s_[l] - wait);
    }
    return wait;
  }

  // Prefetches while compute runs for `seconds`; returns by how much that slows it.
  double Overlap(double seconds, const CopySlowdown* slowdown) {
    double slower = 0;
    for (int l = 0; l < kLanes; ++l) {
      const double own = std::min(busy_s_[l], seconds);
      busy_s_[l] = 0;
      slower += slowdown[l].in * own;
      if (left_[l] <= 0 && copy_out_s_[l] <= 0) continue;
      const double late = std::min(copy_out_s_[l], seconds - own);
      copy_out_s_[l] -= late;
      const double room = std::min(most_ahead_[l], left_[l]) - ahead_[l];
      if (room > 0 && rate_[l] > 0) {
        const double fetched = std::min(room, (seconds - own - late) * rate_[l]);
        ahead_[l] += fetched;
        slower += slowdown[l].in * (fetched * seconds_per_byte_[l]);
      }
      slower += slowdown[l].out * late;
    }
    return slower;
  }

 private:
  double rate_[kLanes] = {};
  double seconds_per_byte_[kLanes] = {};
  double left_[kLanes] = {};
  double ahead_[kLanes] = {};
  double most_ahead_[kLanes] = {};
  double copy_out_s_[kLanes] = {};
  double busy_s_[kLanes] = {};  // With reloads of the block that runs.
};

void BackwardSeconds(const RankModel& model, const std::vector<BlockLoad>& loads,
                     const CopyLimits& limits, const Lane* copy_outs, StepResult* result) {
  Bytes largest = 0;
  for (const BlockLoad& load : loads) largest = std::max(largest, load.largest_moved);
  Reloads reloads(loads, std::max(limits.prefetch, largest), copy_outs);
  for (size_t i = loads.size(); i-- > 0;) {
    // What is run again reads its inputs, and what was selected, at once.
    const bool reads_late = !model.blocks[i].phases.empty() && !model.blocks[i].all_at_once &&
                            loads[i].recompute_s == 0;
    const double waited =
        reloads.Need(loads[i], reads_late ? kHidden * model.blocks[i].backward_s : 0);
    const double compute = loads[i].recompute_s + model.blocks[i].backward_s;
    result->step_s +=
        waited + compute + loads[i].again_s + reloads.Overlap(compute, model.lane_slowdown);
    result->exposed_s += waited + loads[i].again_s;
    result->recompute_s += loads[i].recompute_s;
  }
}

}  // namespace

namespace {

// What is there during the backward of `block`, at most. `beyond`: selected, but not read by it.
void AddBackward(const ModelBlock& block, const BlockChoice& choice, Bytes beyond,
                 BlockLoad* load) {
  if (block.phases.empty()) {
    load->backward_extra = std::max<Bytes>(0, block.bytes + beyond - load->kept);
    load->backward_total = load->backward_extra + block.transient;
    return;
  }
  Bytes there = beyond;
  static thread_local std::vector<Bytes> read;
  read.assign(block.phases.size(), 0);
  for (size_t s = 0; s < block.storages.size(); ++s) {
    const ModelStorage& storage = block.storages[s];
    if (storage.rank >= 0) continue;
    const bool moved = !choice.recompute ? choice.where[s] != kKept : MovesAgain(block, choice, s);
    if (moved && storage.read_at != kNeverRead) continue;  // It comes with its read.
    there += storage.bytes;
    if (storage.read_at != kNeverRead) read[static_cast<size_t>(storage.read_at)] += storage.bytes;
  }
  Bytes most = 0;
  // Run again, the forward's own working memory comes first, on top of what it leaves.
  Bytes most_total = choice.recompute ? there + block.transient : 0;
  if (load->again_moved > 0) {
    // What moves then is not part of that: the run counts as it is, beside the gradients that it
    // finds.
    most_total = 0;
    load->again_extra = there + block.rerun - load->kept;
    load->again_total = there + block.rerun_working + block.phases.front().working - load->kept;
  }
  for (size_t p = 0; p < block.phases.size(); ++p) {
    there -= read[p];
    most = std::max(most, there + block.phases[p].in_use);
    most_total = std::max(most_total, there + block.phases[p].working);
  }
  load->backward_extra = most - load->kept;
  load->backward_total = most_total - load->kept;
}

// What is put away as the block runs again. Copy-outs hide behind that run; reloads, whose order
// the windows hardly leave room to follow, behind nothing.
void AddAgain(const RankModel& model, const ModelBlock& block, const BlockChoice& choice,
              BlockLoad* load) {
  double out_s = 0;
  for (size_t s = 0; s < block.storages.size(); ++s) {
    if (!MovesAgain(block, choice, s)) continue;
    const Path& path = model.paths[static_cast<size_t>(choice.where[s])];
    const Bytes bytes = block.storages[s].bytes;
    load->again_moved += bytes;
    load->again_largest = std::max(load->again_largest, bytes);
    out_s += path.out_latency_s + static_cast<double>(bytes) / path.out_bytes_per_s;
    load->again_s += path.in_latency_s + static_cast<double>(bytes) / path.in_bytes_per_s;
    load->again_s += path.slowdown.out * (static_cast<double>(bytes) / path.out_bytes_per_s);
  }
  load->again_s += std::max(0.0, out_s - load->recompute_s);
}

}  // namespace

BlockLoad LoadOf(const RankModel& model, const ModelBlock& block, const BlockChoice& choice) {
  BlockLoad load;
  Bytes selected = 0;
  Bytes beyond = 0;  // Selected, but not among what backward needs.
  for (size_t s = 0; s < block.storages.size(); ++s) {
    const ModelStorage& storage = block.storages[s];
    if (!Waits(block, choice, s)) continue;
    if (storage.rank >= 0) selected += storage.bytes + storage.stays;
    if (storage.rank >= 0 && !storage.is_saved) beyond += storage.bytes + storage.stays;
    load.kept += storage.stays;
    if (choice.where[s] == kKept) {
      load.kept += storage.bytes;
      continue;
    }
    const Path& path = model.paths[static_cast<size_t>(choice.where[s])];
    const double bytes = static_cast<double>(storage.bytes);
    load.moved += storage.bytes;
    load.largest_moved = std::max(load.largest_moved, storage.bytes);
    load.lane_bytes[path.lane] += storage.bytes;
    load.out_s[path.lane] += path.out_latency_s + bytes / path.out_bytes_per_s;
    load.in_s[path.lane] += path.in_latency_s + bytes / path.in_bytes_per_s;
  }
  load.forward_alive = block.bytes;
  if (choice.recompute) {
    load.forward_alive = block.input_bytes + selected;
    load.remade = std::max<Bytes>(0, block.bytes - block.input_bytes - (selected - beyond));
    load.recompute_s = choice.selected > 0 ? block.selective_s[static_cast<size_t>(choice.selected)]
                                           : block.forward_s;
  }
  if (choice.recompute) AddAgain(model, block, choice, &load);
  AddBackward(block, choice, beyond, &load);
  return load;
}

void SimulateBytes(const RankModel& model, const std::vector<BlockLoad>& loads,
                   const CopyLimits& limits, StepResult* result) {
  Memory memory(model, result);
  Bytes kept = 0;
  Bytes moved = 0;
  Bytes absent = 0;
  for (const ModelBlock& block : model.blocks) absent += block.gradients;
  // Largest moved storage of blocks < i, for every i.
  static thread_local std::vector<Bytes> largest_before;
  largest_before.assign(loads.size() + 1, 0);
  for (size_t i = 0; i < loads.size(); ++i) {
    const Bytes alive =
        kept + loads[i].forward_alive +
        Window(limits.stash, moved, largest_before[i], limits.charge_in_full && i > 0);
    memory.At(alive, alive + model.blocks[i].transient - absent);
    kept += loads[i].kept;
    moved += loads[i].moved;
    largest_before[i + 1] = std::max(largest_before[i], loads[i].largest_moved);
  }
  // What a model saves outside every block may be its loss: it may be back at any time.
  Bytes anytime = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    if (model.blocks[i].read_any_time) anytime += loads[i].moved;
  }
  for (size_t i = loads.size(); i-- > 0;) {
    const bool known = !model.blocks[i].phases.empty();
    Bytes stash = Window(limits.stash, moved, largest_before[loads.size()], limits.charge_in_full);
    if (!known) moved -= loads[i].moved;
    const Bytes again = loads[i].again_moved;
    const Bytes again_largest = loads[i].again_largest;
    const Bytes largest = largest_before[known ? i + 1 : i];
    const Bytes prefetched =
        Window(limits.prefetch, moved + again, std::max(again_largest, largest),
               limits.charge_in_full && i > 0);
    // Backward begins by giving up the stash, and only then fetches ahead.
    if (known) stash = i + 1 == loads.size() ? std::max<Bytes>(0, stash - prefetched) : 0;
    const Bytes kept_now = kept + (model.blocks[i].read_any_time ? 0 : anytime);
    if (again > 0) {
      const Bytes windows = Window(limits.stash, again, again_largest, false) +
                            Window(limits.prefetch, moved, largest, false);
      memory.At(kept_now + windows + loads[i].again_extra,
                kept_now + windows + loads[i].again_total - absent);
    }
    const Bytes others = kept_now + prefetched + stash;
    memory.At(others + loads[i].backward_extra, others + loads[i].backward_total - absent);
    if (known) moved -= loads[i].moved;
    absent -= model.blocks[i].gradients;
    kept -= loads[i].kept;
  }
}

void SimulateSeconds(const RankModel& model, const std::vector<BlockLoad>& loads,
                     const CopyLimits& limits, StepResult* result) {
  Lane copy_outs[kLanes];
  ForwardSeconds(model, loads, limits, copy_outs, result);
  BackwardSeconds(model, loads, limits, copy_outs, result);
}

StepResult SimulateStep(const RankModel& model, const std::vector<BlockLoad>& loads,
                        const CopyLimits& limits) {
  StepResult result;
  SimulateBytes(model, loads, limits, &result);
  SimulateSeconds(model, loads, limits, &result);
  return result;
}

}  // namespace hyperframes
