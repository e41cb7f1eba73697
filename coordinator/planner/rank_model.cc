#include "coordinator/planner/rank_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace hyperframes {
namespace {

// More lenders than this make no plan better, only slower to find.
constexpr size_t kMostPeers = 8;
constexpr size_t kMostHosts = 2;
constexpr size_t kMostOnOtherNodes = 4;

// Staging memory for one lease on another node: a 64th of the GPU. More than the most makes no copy
// faster, and less than the least makes pieces so small that their messages cost more than bytes.
constexpr Bytes kLeastStaging = kMiB;
constexpr Bytes kMostStaging = 128 * kMiB;
constexpr Bytes kStagingShare = 64;

const LinkProfile* FindLink(const PlanProblem& problem, const std::string& from,
                            const std::string& to) {
  // Links are sorted by their ends.
  const auto found =
      std::lower_bound(problem.links.begin(), problem.links.end(), std::tie(from, to),
                       [](const LinkProfile& link, const auto& ends) {
                         return std::tie(link.from, link.to) < ends;
                       });
  if (found == problem.links.end() || found->from != from || found->to != to) return nullptr;
  return &*found;
}

// How many ranks may use a shared link at once. All ranks run the same step at the same time, so
// each is given its even share.
std::map<std::string, int> RanksPerGroup(const PlanProblem& problem) {
  std::map<std::string, std::set<std::string>> users;
  for (const RankProblem& rank : problem.ranks) {
    for (const LinkProfile& link : problem.links) {
      if (link.shared_group.empty()) continue;
      if (link.from == rank.gpu || link.to == rank.gpu) users[link.shared_group].insert(rank.gpu);
    }
  }
  std::map<std::string, int> counts;
  for (const auto& [group, gpus] : users) counts[group] = static_cast<int>(gpus.size());
  return counts;
}

double Share(const LinkProfile& link, const std::map<std::string, int>& groups) {
  const auto found = groups.find(link.shared_group);
  return link.bytes_per_second / (found == groups.end() ? 1 : std::max(1, found->second));
}

Bytes RoomOn(const DeviceProfile& device, const Taken& taken) {
  const auto leased = taken.leased.find(device.uuid);
  const auto peak = taken.own_peaks.find(device.uuid);
  Bytes room = device.lendable_bytes;
  // A GPU that computes lends only what its own plan leaves.
  if (peak != taken.own_peaks.end()) room = std::min(room, device.usable_bytes - peak->second);
  if (leased != taken.leased.end()) room -= leased->second;
  return std::max<Bytes>(0, room) / kSlotAlignment * kSlotAlignment;
}

Bytes StagingOn(const DeviceProfile& gpu) {
  const Bytes staging = std::clamp(gpu.usable_bytes / kStagingShare, kLeastStaging, kMostStaging);
  return staging / kSlotAlignment * kSlotAlignment;
}

// Marks a path whose lender is on another node than `gpu`: there hftransfer keeps its own bytes,
// and here the frames pass through staging memory.
void Cross(const DeviceProfile& gpu, const DeviceProfile& lender, Path* path) {
  path->node = lender.node;
  path->staging = StagingOn(gpu);
  path->room =
      std::max<Bytes>(0, path->room - lender.transfer_bytes) / kSlotAlignment * kSlotAlignment;
}

void KeepFastest(std::vector<Path>* paths, size_t most) {
  std::stable_sort(paths->begin(), paths->end(), [](const Path& a, const Path& b) {
    const double a_speed = std::min(a.out_bytes_per_s, a.in_bytes_per_s);
    const double b_speed = std::min(b.out_bytes_per_s, b.in_bytes_per_s);
    return std::tie(b_speed, b.room, a.device) < std::tie(a_speed, a.room, b.device);
  });
  if (paths->size() > most) paths->resize(most);
  std::sort(paths->begin(), paths->end(),
            [](const Path& a, const Path& b) { return a.device < b.device; });
}

// What copies over either way of a link cost compute: as the rank measured, or as the link says.
CopySlowdown SlowdownOf(const CopySlowdown& measured, const LinkProfile& out,
                        const LinkProfile& in) {
  const double told = std::max(out.compute_slowdown, in.compute_slowdown);
  return {std::max(measured.out, told), std::max(measured.in, told)};
}

void AddPaths(const PlanProblem& problem, const RankProblem& rank, const Taken& taken,
              Lenders lenders, RankModel* model) {
  const std::string& gpu = rank.gpu;
  const std::map<std::string, int> ranks_per_group = RanksPerGroup(problem);
  const DeviceProfile& own = DeviceOf(problem, gpu);
  std::vector<Path> by_tier[kTierCount];
  std::vector<Path> on_other_nodes;
  std::set<std::string> groups[kTierCount];
  for (const DeviceProfile& device : problem.devices) {
    const Tier tier = device.is_host ? Tier::kHost : Tier::kPeer;
    const bool crosses = device.node != own.node;
    if (crosses && (lenders == Lenders::kOwnNode || device.is_host)) continue;
    const auto& forbidden = problem.forbidden_tiers;
    if (device.uuid == gpu ||
        std::find(forbidden.begin(), forbidden.end(), tier) != forbidden.end())
      continue;
    const LinkProfile* out = FindLink(problem, gpu, device.uuid);
    const LinkProfile* in = FindLink(problem, device.uuid, gpu);
    if (out == nullptr) out = in;
    if (in == nullptr) in = out;
    // A link that was not measured has no speed: nothing is placed by guess.
    if (out == nullptr || out->bytes_per_second <= 0 || in->bytes_per_second <= 0) continue;
    Path path;
    path.device = device.uuid;
    path.tier = tier;
    path.out_bytes_per_s = Share(*out, ranks_per_group);
    path.in_bytes_per_s = Share(*in, ranks_per_group);
    path.out_latency_s = absl::ToDoubleSeconds(out->latency);
    path.in_latency_s = absl::ToDoubleSeconds(in->latency);
    // What the rank measured is of its own node: nothing is known of the way to another.
    const CopySlowdown& measured = device.is_host ? rank.host_slowdown : rank.peer_slowdown;
    path.slowdown = SlowdownOf(crosses ? CopySlowdown() : measured, *out, *in);
    path.room = RoomOn(device, taken);
    path.usable = device.usable_bytes;
    path.taken = std::max<Bytes>(0, device.usable_bytes - path.room);
    path.kind = out->kind;
    if (crosses) Cross(own, device, &path);
    if (path.room < kSlotAlignment) continue;
    if (crosses) {
      on_other_nodes.push_back(path);
      continue;
    }
    if (!out->shared_group.empty()) groups[static_cast<int>(tier)].insert(out->shared_group);
    by_tier[static_cast<int>(tier)].push_back(path);
  }
  // Tiers that share a link share its lane: together they are no faster.
  bool shared = false;
  for (const std::string& group : groups[static_cast<int>(Tier::kHost)]) {
    shared = shared || groups[static_cast<int>(Tier::kPeer)].count(group) > 0;
  }
  KeepFastest(&by_tier[static_cast<int>(Tier::kPeer)], kMostPeers);
  KeepFastest(&by_tier[static_cast<int>(Tier::kHost)], kMostHosts);
  KeepFastest(&on_other_nodes, kMostOnOtherNodes);
  for (auto* const paths : {&by_tier[static_cast<int>(Tier::kPeer)], &on_other_nodes,
                            &by_tier[static_cast<int>(Tier::kHost)]}) {
    for (Path& path : *paths) {
      // What goes to another node leaves the GPU by the way that host memory is reached by.
      const bool leaves = path.tier == Tier::kHost || !path.node.empty();
      path.lane = leaves && !shared ? 1 : 0;
      CopySlowdown& slowdown = model->lane_slowdown[path.lane];
      slowdown.out = std::max(slowdown.out, path.slowdown.out);
      slowdown.in = std::max(slowdown.in, path.slowdown.in);
      model->paths.push_back(path);
    }
  }
}

double SecondsPerByte(const SelectiveStorage& storage) {
  return absl::ToDoubleSeconds(storage.recompute) /
         static_cast<double>(std::max<Bytes>(1, storage.bytes));
}

// Those that are always saved, then by time per byte.
std::vector<SelectiveStorage> Ranked(std::vector<SelectiveStorage> storages) {
  std::stable_sort(storages.begin(), storages.end(),
                   [](const SelectiveStorage& a, const SelectiveStorage& b) {
                     if (a.always != b.always) return a.always;
                     const double a_worth = SecondsPerByte(a);
                     const double b_worth = SecondsPerByte(b);
                     return std::tie(b_worth, a.ordinal) < std::tie(a_worth, b.ordinal);
                   });
  return storages;
}

// How many of the ranked storages it is worth to try saving: all, about half of their bytes, and up
// to where the time per byte drops most: attention is worth ten times a matrix product, and those
// much alike. What lies between is found one by one.
std::vector<int> WorthTrying(const std::vector<SelectiveStorage>& ranked) {
  constexpr double kLeastShare = 0.1;  // Of the time that all together spare.
  double all_s = 0;
  Bytes all_bytes = 0;
  for (const SelectiveStorage& storage : ranked) {
    all_s += absl::ToDoubleSeconds(storage.recompute);
    all_bytes += storage.bytes;
  }
  double spared_s = 0;
  Bytes bytes = 0;
  double largest_drop = 0;
  int at_drop = 0;
  int at_half = 0;
  for (size_t k = 1; k < ranked.size(); ++k) {
    spared_s += absl::ToDoubleSeconds(ranked[k - 1].recompute);
    bytes += ranked[k - 1].bytes;
    if (ranked[k].always || spared_s < kLeastShare * all_s) continue;
    const double after = SecondsPerByte(ranked[k]);
    const double drop = after > 0 ? SecondsPerByte(ranked[k - 1]) / after : HUGE_VAL;
    if (drop > largest_drop) {
      largest_drop = drop;
      at_drop = static_cast<int>(k);
    }
    if (2 * bytes <= all_bytes || at_half == 0) at_half = static_cast<int>(k);
  }
  std::set<int> counts = {at_drop, at_half, static_cast<int>(ranked.size())};
  counts.erase(0);
  return {counts.begin(), counts.end()};
}

void AddSelective(const BlockProfile& profile, ModelBlock* block) {
  if (profile.selective.empty()) return;
  const std::vector<SelectiveStorage> ranked = Ranked(profile.selective);
  for (size_t k = 0; k < ranked.size(); ++k) {
    const SelectiveStorage& from = ranked[k];
    ModelStorage storage;
    storage.bytes = from.bytes;
    storage.can_move = from.movable;
    storage.rank = static_cast<int>(k);
    storage.is_saved = from.is_saved;
    storage.ordinal = from.ordinal;
    storage.stays = from.kept_bytes;
    block->storages.push_back(storage);
    if (from.always) block->least_selected = static_cast<int>(k) + 1;
  }
  block->selective_s.assign(ranked.size() + 1, absl::ToDoubleSeconds(profile.selective_base));
  for (size_t k = ranked.size(); k-- > 0;) {
    block->selective_s[k] = block->selective_s[k + 1] + absl::ToDoubleSeconds(ranked[k].recompute);
  }
  block->prefixes = WorthTrying(ranked);
}

int ReadAt(const BlockProfile& profile, const StorageProfile& storage) {
  if (storage.is_input) return kNeverRead;
  for (size_t p = 0; p < profile.phases.size(); ++p) {
    if (profile.phases[p].reads == storage.ordinal) return static_cast<int>(p);
  }
  return kNeverRead;
}

// Told by the last phase: nothing that was read before it has been given back.
bool IsReadAtOnce(const BlockProfile& profile) {
  constexpr int kFewestReads = 3;  // Of less nothing can be told.
  Bytes read = 0;
  int reads = 0;
  for (const BackwardPhase& phase : profile.phases) {
    for (const StorageProfile& storage : profile.storages) {
      if (storage.is_input || storage.ordinal != phase.reads) continue;
      read += storage.bytes;
      ++reads;
    }
  }
  return reads >= kFewestReads && profile.phases.back().in_use_bytes >= read;
}

ModelBlock ToModel(const BlockProfile& profile, bool forbid_recompute, bool forbid_selective) {
  ModelBlock block;
  block.forward_s = absl::ToDoubleSeconds(profile.forward);
  block.backward_s = absl::ToDoubleSeconds(profile.backward);
  block.transient = profile.transient_bytes;
  block.gradients = profile.gradient_bytes;
  block.can_recompute = profile.recomputable && !forbid_recompute;
  block.read_any_time = profile.read_any_time;
  block.rerun = profile.rerun_bytes;
  block.rerun_working = std::max(profile.rerun_bytes, profile.rerun_working_bytes);
  for (const BackwardPhase& phase : profile.phases) {
    block.phases.push_back({phase.in_use_bytes, phase.working_bytes});
  }
  block.all_at_once = IsReadAtOnce(profile);
  for (const StorageProfile& storage : profile.storages) {
    block.storages.push_back({storage.bytes, storage.is_input, storage.movable && storage.stable});
    block.storages.back().ordinal = storage.ordinal;
    block.storages.back().read_at = ReadAt(profile, storage);
    block.bytes += storage.bytes;
    if (storage.is_input) block.input_bytes += storage.bytes;
  }
  if (block.can_recompute && !forbid_selective) AddSelective(profile, &block);
  return block;
}

}  // namespace

const DeviceProfile& DeviceOf(const PlanProblem& problem, const std::string& uuid) {
  return *std::find_if(problem.devices.begin(), problem.devices.end(),
                       [&uuid](const DeviceProfile& device) { return device.uuid == uuid; });
}

Bytes RoundingBytes(const RankProblem& rank) {
  Bytes rounding = 0;
  for (const BlockProfile& block : rank.blocks) {
    for (const StorageProfile& storage : block.storages) {
      rounding += SlotBytes(storage.bytes) - storage.bytes;
    }
    for (const SelectiveStorage& storage : block.selective) {
      if (!storage.is_saved) rounding += SlotBytes(storage.bytes) - storage.bytes;
    }
  }
  return rounding;
}

RankModel BuildRankModel(const PlanProblem& problem, size_t rank, const Taken& taken,
                         Lenders lenders) {
  const RankProblem& of = problem.ranks[rank];
  RankModel model;
  model.level_first = problem.level_first;
  for (const BlockProfile& block : of.blocks) {
    model.blocks.push_back(ToModel(block, problem.forbid_recompute, problem.forbid_selective));
  }
  AddPaths(problem, of, taken, lenders, &model);
  const DeviceProfile& gpu = DeviceOf(problem, of.gpu);
  const auto leased = taken.leased.find(of.gpu);
  const Bytes lent = leased == taken.leased.end() ? 0 : leased->second;
  for (const Path& path : model.paths) {
    if (path.node.empty()) continue;
    if (model.across_nodes == 0) model.across_nodes = gpu.transfer_bytes;
    model.across_nodes += path.staging;
  }
  const Bytes fixed = of.resident_bytes + RoundingBytes(of) + model.across_nodes;
  model.total_limit = gpu.usable_bytes - lent - of.overhead_bytes - fixed;
  if (of.budget >= 0) model.total_limit = std::min(model.total_limit, of.budget - fixed);
  if (of.activation_budget >= 0) model.activation_limit = of.activation_budget;
  return model;
}

}  // namespace hyperframes
