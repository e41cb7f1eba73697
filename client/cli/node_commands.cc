#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Table::Align kRight = Table::Align::kRight;

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
               {"AGENT"}});
  for (const v1::NodeInfo& node : response.nodes()) {
    table.AddRow({node.node(), NodeStateText(node.state()), absl::StrCat(node.gpus_size()),
                  FormatBytes(LentByGpus(node)), FormatBytes(node.host_lent_bytes()),
                  FormatBytes(node.host_lendable_bytes()), absl::StrCat(LivingWorkers(node)),
                  AgeText(node.heartbeat_age_s()), node.agent_address()});
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
