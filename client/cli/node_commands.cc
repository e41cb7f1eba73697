#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Table::Align kRight = Table::Align::kRight;
constexpr size_t kMostMeasuredShown = 3;

// What leases hold on a node's GPUs.
Bytes LentByGpus(const v1::NodeInfo& node) {
  Bytes lent = 0;
  for (const v1::GpuInfo& gpu : node.gpus()) lent += gpu.lent_bytes();
  return lent;
}

// What workers report, and on a real GPU all that is not lent, whoever holds it.
Bytes UsedBesideLeases(const v1::GpuInfo& gpu) {
  return std::max<Bytes>(gpu.used_bytes(), gpu.occupied_bytes());
}

std::string Health(const v1::GpuInfo& gpu) {
  if (!gpu.unhealthy()) return "ok";
  return gpu.unhealthy_reason().empty() ? "UNHEALTHY"
                                        : absl::StrCat("UNHEALTHY: ", gpu.unhealthy_reason());
}

void SayNoNodes(const std::string& coordinator, std::ostream* out) {
  *out << "no nodes have registered; start `hfagent --coordinator " << coordinator << "` on each\n";
}

int LivingWorkers(const v1::NodeInfo& node) {
  int living = 0;
  for (const v1::WorkerReport& worker : node.workers()) {
    if (worker.state() != v1::WORKER_STATE_EXITED) ++living;
  }
  return living;
}

std::string SpeedText(double bytes_per_second) {
  return absl::StrCat(FormatBytes(static_cast<Bytes>(std::min(bytes_per_second, 1e18))), "/s");
}

// "infiniband 46.6GiB/s", as the node was told; "-": it exchanges no frames with others.
std::string NetworkText(const v1::NodeInfo& node) {
  const v1::NetworkProfile& network = node.network();
  if (network.bytes_per_second() <= 0) return "-";
  return absl::StrCat(network.kind(), " ", SpeedText(network.bytes_per_second()));
}

// "b 1.9GiB/s 3.0s ago", the slowest first; "-": nothing was measured.
std::string MeasuredText(const v1::NodeInfo& node) {
  std::vector<v1::NetworkMeasurement> all(node.network_measured().begin(),
                                          node.network_measured().end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.bytes_per_second(), a.node()) <
           std::make_pair(b.bytes_per_second(), b.node());
  });
  std::string text;
  for (size_t i = 0; i < all.size() && i < kMostMeasuredShown; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", all[i].node(), " ",
                    SpeedText(all[i].bytes_per_second()), " ", AgeText(all[i].age_s()), " ago");
  }
  if (all.size() > kMostMeasuredShown) {
    absl::StrAppend(&text, " and ", all.size() - kMostMeasuredShown, " more");
  }
  return text.empty() ? "-" : text;
}

}  // namespace

absl::StatusOr<int> RunNodes(CommandLine* line) {
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(0, 0));
  if (!run) return kExitOk;
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  HF_ASSIGN_OR_RETURN(const v1::ListNodesResponse response, client->ListNodes({}));
  if (line->json()) {
    HF_RETURN_IF_ERROR(line->PrintJson(response));
    return kExitOk;
  }
  if (response.nodes().empty()) {
    SayNoNodes(client->address(), line->out());
    return kExitOk;
  }
  Table table({{"NODE"},
               {"STATE"},
               {"GPUS", kRight},
               {"LENT", kRight},
               {"HOST LENT", kRight},
               {"HOST LENDABLE", kRight},
               {"WORKERS", kRight},
               {"HEARTBEAT", kRight},
               {"AGENT"},
               {"NETWORK"},
               {"MEASURED"}});
  for (const v1::NodeInfo& node : response.nodes()) {
    table.AddRow({node.node(), NodeStateText(node.state()), absl::StrCat(node.gpus_size()),
                  FormatBytes(LentByGpus(node)), FormatBytes(node.host_lent_bytes()),
                  FormatBytes(node.host_lendable_bytes()), absl::StrCat(LivingWorkers(node)),
                  AgeText(node.heartbeat_age_s()), node.agent_address(), NetworkText(node),
                  MeasuredText(node)});
  }
  table.Print(line->out());
  return kExitOk;
}

absl::StatusOr<int> RunGpus(CommandLine* line) {
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(0, 1));
  if (!run) return kExitOk;
  const std::string only = line->positional().empty() ? "" : line->positional()[0];
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  HF_ASSIGN_OR_RETURN(v1::ListNodesResponse response, client->ListNodes({}));
  if (!only.empty()) {
    v1::ListNodesResponse kept;
    kept.set_epoch(response.epoch());
    for (const v1::NodeInfo& node : response.nodes()) {
      if (node.node() == only) *kept.add_nodes() = node;
    }
    if (kept.nodes().empty()) {
      return absl::NotFoundError(absl::StrCat("no node \"", only, "\"; `hfctl nodes` lists them"));
    }
    response = kept;
  }
  if (line->json()) {
    HF_RETURN_IF_ERROR(line->PrintJson(response));
    return kExitOk;
  }
  if (response.nodes().empty()) {
    SayNoNodes(client->address(), line->out());
    return kExitOk;
  }
  Table table({{"NODE"},
               {"GPU", kRight},
               {"UUID"},
               {"NAME"},
               {"TOTAL", kRight},
               {"USED", kRight},
               {"LENT", kRight},
               {"RESERVE", kRight},
               {"LEVEL", kRight},
               {"HEALTH"}});
  for (const v1::NodeInfo& node : response.nodes()) {
    for (const v1::GpuInfo& gpu : node.gpus()) {
      table.AddRow({node.node(), absl::StrCat(gpu.index()), gpu.uuid(), gpu.name(),
                    FormatBytes(gpu.total_bytes()), FormatBytes(UsedBesideLeases(gpu)),
                    FormatBytes(gpu.lent_bytes()), FormatBytes(gpu.reserve_bytes()),
                    ShareText(UsedBesideLeases(gpu) + gpu.lent_bytes(), gpu.total_bytes()),
                    Health(gpu)});
    }
  }
  table.Print(line->out());
  return kExitOk;
}

}  // namespace hyperframes
