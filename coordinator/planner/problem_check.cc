#include "coordinator/planner/problem_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr size_t kMostRanks = 4096;
constexpr size_t kMostDevices = 8192;
constexpr size_t kMostLinks = 1 << 20;
constexpr size_t kMostBlocks = 100000;
constexpr size_t kMostStorages = 4096;        // Of one block.
constexpr Bytes kMostBytes = Bytes{1} << 50;  // 1 PiB: sums of many stay inside 63 bits.
constexpr size_t kMostName = 512;

absl::Status Refuse(const std::string& field, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", why));
}

std::string Short(const std::string& text) {
  constexpr size_t kMost = 80;
  return absl::StrCat("\"", text.substr(0, kMost), text.size() > kMost ? "..." : "", "\"");
}

absl::Status CheckBytes(const std::string& field, Bytes bytes) {
  if (bytes < 0) return Refuse(field, absl::StrCat("is ", bytes, ": bytes are never negative"));
  if (bytes > kMostBytes) return Refuse(field, absl::StrCat("is ", bytes, ", more than 1PiB"));
  return absl::OkStatus();
}

absl::Status CheckSeconds(const std::string& field, absl::Duration duration) {
  if (duration < absl::ZeroDuration() || duration > absl::Hours(24 * 365)) {
    return Refuse(field, absl::StrCat("is ", absl::FormatDuration(duration),
                                      "; it must be from 0 to a year"));
  }
  return absl::OkStatus();
}

absl::Status CheckShare(const std::string& field, double share) {
  if (share >= 0 && share <= 1) return absl::OkStatus();
  return Refuse(field, absl::StrCat("is ", share, "; it is a share from 0 to 1"));
}

absl::Status CheckSlowdown(const std::string& field, const CopySlowdown& slowdown) {
  HF_RETURN_IF_ERROR(CheckShare(absl::StrCat(field, ".out"), slowdown.out));
  return CheckShare(absl::StrCat(field, ".in"), slowdown.in);
}

absl::Status CheckName(const std::string& field, const std::string& name) {
  if (name.empty()) return Refuse(field, "is empty");
  if (name.size() > kMostName) {
    return Refuse(field, absl::StrCat("has ", name.size(), " characters, more than ", kMostName));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(const std::string& field, size_t count, size_t most) {
  if (count <= most) return absl::OkStatus();
  return Refuse(field, absl::StrCat("has ", count, " entries, more than ", most));
}

absl::Status CheckSelective(const std::string& field, const BlockProfile& block) {
  HF_RETURN_IF_ERROR(CheckSeconds(absl::StrCat(field, ".selective_base"), block.selective_base));
  HF_RETURN_IF_ERROR(
      CheckCount(absl::StrCat(field, ".selective"), block.selective.size(), kMostStorages));
  std::set<int32_t> ordinals;
  for (size_t s = 0; s < block.selective.size(); ++s) {
    const std::string of = absl::StrCat(field, ".selective[", s, "]");
    const SelectiveStorage& storage = block.selective[s];
    HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(of, ".bytes"), storage.bytes));
    HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(of, ".kept_bytes"), storage.kept_bytes));
    HF_RETURN_IF_ERROR(CheckSeconds(absl::StrCat(of, ".recompute"), storage.recompute));
    HF_RETURN_IF_ERROR(CheckName(absl::StrCat(of, ".op"), storage.op));
    if (!ordinals.insert(storage.ordinal).second) {
      return Refuse(absl::StrCat(of, ".ordinal"), absl::StrCat(storage.ordinal, " is there twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPhases(const std::string& field, const BlockProfile& block) {
  HF_RETURN_IF_ERROR(CheckCount(field, block.phases.size(), kMostStorages + 1));
  for (size_t p = 0; p < block.phases.size(); ++p) {
    const std::string of = absl::StrCat(field, "[", p, "]");
    const BackwardPhase& phase = block.phases[p];
    HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(of, ".in_use_bytes"), phase.in_use_bytes));
    HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(of, ".working_bytes"), phase.working_bytes));
    if (phase.working_bytes < phase.in_use_bytes) {
      return Refuse(absl::StrCat(of, ".working_bytes"),
                    absl::StrCat("is ", phase.working_bytes, ", less than in_use_bytes (",
                                 phase.in_use_bytes, "), which are a part of it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBlock(const std::string& field, const BlockProfile& block) {
  HF_RETURN_IF_ERROR(CheckName(absl::StrCat(field, ".name"), block.name));
  HF_RETURN_IF_ERROR(CheckSeconds(absl::StrCat(field, ".forward"), block.forward));
  HF_RETURN_IF_ERROR(CheckSeconds(absl::StrCat(field, ".backward"), block.backward));
  HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(field, ".transient_bytes"), block.transient_bytes));
  HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(field, ".gradient_bytes"), block.gradient_bytes));
  HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(field, ".rerun_bytes"), block.rerun_bytes));
  HF_RETURN_IF_ERROR(
      CheckBytes(absl::StrCat(field, ".rerun_working_bytes"), block.rerun_working_bytes));
  HF_RETURN_IF_ERROR(CheckPhases(absl::StrCat(field, ".phases"), block));
  HF_RETURN_IF_ERROR(
      CheckCount(absl::StrCat(field, ".storages"), block.storages.size(), kMostStorages));
  HF_RETURN_IF_ERROR(CheckSelective(field, block));
  std::set<int32_t> ordinals;
  for (size_t s = 0; s < block.storages.size(); ++s) {
    const std::string of = absl::StrCat(field, ".storages[", s, "]");
    const StorageProfile& storage = block.storages[s];
    HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(of, ".bytes"), storage.bytes));
    if (storage.consumers < 0) {
      return Refuse(absl::StrCat(of, ".consumers"), absl::StrCat("is ", storage.consumers));
    }
    if (!ordinals.insert(storage.ordinal).second) {
      return Refuse(absl::StrCat(of, ".ordinal"), absl::StrCat(storage.ordinal, " is there twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBlocks(const std::string& field, const RankProblem& rank) {
  HF_RETURN_IF_ERROR(CheckCount(absl::StrCat(field, ".blocks"), rank.blocks.size(), kMostBlocks));
  std::set<std::string> names;
  Bytes gradients = 0;
  for (size_t b = 0; b < rank.blocks.size(); ++b) {
    const std::string of = absl::StrCat(field, ".blocks[", b, "]");
    HF_RETURN_IF_ERROR(CheckBlock(of, rank.blocks[b]));
    if (!names.insert(rank.blocks[b].name).second) {
      return Refuse(absl::StrCat(of, ".name"),
                    absl::StrCat(Short(rank.blocks[b].name), " is there twice"));
    }
    gradients += rank.blocks[b].gradient_bytes;
  }
  if (gradients > rank.resident_bytes) {
    return Refuse(absl::StrCat(field, ".blocks"),
                  absl::StrCat("have ", gradients, " gradient_bytes, more than the rank's ",
                               rank.resident_bytes, " resident_bytes, of which they are a part"));
  }
  return absl::OkStatus();
}

absl::Status CheckRank(const std::string& field, const RankProblem& rank,
                       const std::set<std::string>& gpus) {
  if (gpus.count(rank.gpu) == 0) {
    return Refuse(absl::StrCat(field, ".gpu"),
                  absl::StrCat(Short(rank.gpu), " is no GPU among the devices"));
  }
  HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(field, ".resident_bytes"), rank.resident_bytes));
  HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(field, ".overhead_bytes"), rank.overhead_bytes));
  HF_RETURN_IF_ERROR(CheckSlowdown(absl::StrCat(field, ".peer_slowdown"), rank.peer_slowdown));
  HF_RETURN_IF_ERROR(CheckSlowdown(absl::StrCat(field, ".host_slowdown"), rank.host_slowdown));
  if (rank.budget >= 0 && rank.activation_budget >= 0) {
    return Refuse(field,
                  absl::StrCat("has two budgets: budget ", rank.budget, " and activation_budget ",
                               rank.activation_budget, "; give one"));
  }
  for (const auto& [name, value] :
       {std::pair<const char*, Bytes>{".budget", rank.budget},
        std::pair<const char*, Bytes>{".activation_budget", rank.activation_budget}}) {
    if (value < -1) {
      return Refuse(absl::StrCat(field, name),
                    absl::StrCat("is ", value,
                                 "; 0 means none, and leaving it out (-1) lets the "
                                 "GPU's usable bytes bind"));
    }
    if (value > 0) HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(field, name), value));
  }
  return CheckBlocks(field, rank);
}

absl::Status CheckDevices(const PlanProblem& problem, std::set<std::string>* all,
                          std::set<std::string>* gpus) {
  HF_RETURN_IF_ERROR(CheckCount("devices", problem.devices.size(), kMostDevices));
  for (size_t d = 0; d < problem.devices.size(); ++d) {
    const DeviceProfile& device = problem.devices[d];
    const std::string of = absl::StrCat("devices[", d, "]");
    HF_RETURN_IF_ERROR(CheckName(absl::StrCat(of, ".uuid"), device.uuid));
    HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(of, ".usable_bytes"), device.usable_bytes));
    HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(of, ".lendable_bytes"), device.lendable_bytes));
    HF_RETURN_IF_ERROR(CheckBytes(absl::StrCat(of, ".transfer_bytes"), device.transfer_bytes));
    if (!all->insert(device.uuid).second) {
      return Refuse(absl::StrCat(of, ".uuid"), absl::StrCat(Short(device.uuid), " is there twice"));
    }
    if (!device.is_host) gpus->insert(device.uuid);
  }
  return absl::OkStatus();
}

absl::Status CheckLinks(const PlanProblem& problem, const std::set<std::string>& devices) {
  HF_RETURN_IF_ERROR(CheckCount("links", problem.links.size(), kMostLinks));
  std::set<std::pair<std::string, std::string>> ends;
  for (size_t l = 0; l < problem.links.size(); ++l) {
    const LinkProfile& link = problem.links[l];
    const std::string of = absl::StrCat("links[", l, "]");
    for (const auto& [name, end] : {std::pair<const char*, const std::string&>{".from", link.from},
                                    std::pair<const char*, const std::string&>{".to", link.to}}) {
      if (devices.count(end) == 0) {
        return Refuse(absl::StrCat(of, name), absl::StrCat(Short(end), " is none of the devices"));
      }
    }
    if (!std::isfinite(link.bytes_per_second) || link.bytes_per_second < 0) {
      return Refuse(absl::StrCat(of, ".bytes_per_second"),
                    absl::StrCat("is ", link.bytes_per_second));
    }
    HF_RETURN_IF_ERROR(CheckSeconds(absl::StrCat(of, ".latency"), link.latency));
    HF_RETURN_IF_ERROR(CheckShare(absl::StrCat(of, ".compute_slowdown"), link.compute_slowdown));
    if (!ends.insert({link.from, link.to}).second) {
      return Refuse(of, absl::StrCat("is there twice: ", Short(link.from), " to ", Short(link.to)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProblem(const PlanProblem& problem) {
  std::set<std::string> devices;
  std::set<std::string> gpus;
  HF_RETURN_IF_ERROR(CheckDevices(problem, &devices, &gpus));
  HF_RETURN_IF_ERROR(CheckLinks(problem, devices));
  if (problem.ranks.empty()) return Refuse("ranks", "is empty: there is nothing to plan");
  HF_RETURN_IF_ERROR(CheckCount("ranks", problem.ranks.size(), kMostRanks));
  std::set<int32_t> ranks;
  std::set<std::string> used;
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    const std::string of = absl::StrCat("ranks[", r, "]");
    HF_RETURN_IF_ERROR(CheckRank(of, problem.ranks[r], gpus));
    if (!ranks.insert(problem.ranks[r].rank).second) {
      return Refuse(absl::StrCat(of, ".rank"),
                    absl::StrCat(problem.ranks[r].rank, " is there twice"));
    }
    if (!used.insert(problem.ranks[r].gpu).second) {
      return Refuse(absl::StrCat(of, ".gpu"),
                    absl::StrCat(Short(problem.ranks[r].gpu), " computes for two ranks"));
    }
  }
  for (const Tier tier : problem.forbidden_tiers) {
    if (tier == Tier::kKeep) {
      return Refuse("forbidden_tiers", "names KEEP: what is computed is on its GPU at first");
    }
  }
  return absl::OkStatus();
}

PlanProblem InCanonicalOrder(PlanProblem problem) {
  std::sort(problem.devices.begin(), problem.devices.end(),
            [](const DeviceProfile& a, const DeviceProfile& b) { return a.uuid < b.uuid; });
  std::sort(problem.links.begin(), problem.links.end(),
            [](const LinkProfile& a, const LinkProfile& b) {
              return std::tie(a.from, a.to) < std::tie(b.from, b.to);
            });
  std::sort(problem.forbidden_tiers.begin(), problem.forbidden_tiers.end());
  return problem;
}

}  // namespace hyperframes
