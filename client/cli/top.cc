#include "client/cli/top.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cpp/client.h"

namespace hyperframes {
namespace {

constexpr int kLeastColumns = 60;
constexpr int kMostBar = 40;
constexpr int kTextColumns = 84;  // What stands beside a bar, about.

int Cells(Bytes part, Bytes whole, int width) {
  if (part <= 0 || whole <= 0) return 0;
  const double share = static_cast<double>(part) / static_cast<double>(whole);
  return std::min(width, std::max(1, static_cast<int>(std::lround(share * width))));
}

std::string Headline(const std::string& coordinator, const v1::ListNodesResponse& nodes,
                     const v1::ListJobsResponse& jobs) {
  std::map<std::string, int> states;
  for (const v1::NodeInfo& node : nodes.nodes()) {
    ++states[absl::AsciiStrToLower(NodeStateText(node.state()))];
  }
  std::map<std::string, int> job_states;
  for (const v1::Job& job : jobs.jobs()) {
    if (!IsFinalJobState(job.state()))
      ++job_states[absl::AsciiStrToLower(JobStateName(job.state()))];
  }
  const auto counts = [](const std::map<std::string, int>& map) {
    if (map.empty()) return std::string("none");
    return absl::StrJoin(map, ", ", [](std::string* out, const auto& entry) {
      absl::StrAppend(out, entry.second, " ", entry.first);
    });
  };
  return absl::StrCat("hyperframes ", coordinator, "  epoch ", nodes.epoch(),
                      "  nodes: ", counts(states), "  jobs: ", counts(job_states), "\n");
}

void AppendGpu(const v1::GpuInfo& gpu, int bar, std::string* out) {
  absl::StrAppendFormat(out, "  %-20s %s %4s  used %s  lent %s  of %s%s\n", Printable(gpu.uuid()),
                        Bar(gpu.used_bytes(), gpu.lent_bytes(), gpu.total_bytes(), bar),
                        ShareText(gpu.used_bytes() + gpu.lent_bytes(), gpu.total_bytes()),
                        FormatBytes(gpu.used_bytes()), FormatBytes(gpu.lent_bytes()),
                        FormatBytes(gpu.total_bytes()), gpu.unhealthy() ? "  UNHEALTHY" : "");
}

void AppendWorker(const v1::WorkerReport& worker, int bar, std::string* out) {
  const Bytes peak = worker.activation_peak_bytes();
  absl::StrAppendFormat(out, "  %-20s %s %4s  activations %s  peak %s  steps %d  %s%s\n",
                        Printable(worker.worker_id()), Bar(worker.activation_bytes(), 0, peak, bar),
                        ShareText(worker.activation_bytes(), peak),
                        FormatBytes(worker.activation_bytes()), FormatBytes(peak), worker.steps(),
                        WorkerStateText(worker.state()), worker.adopted() ? "  adopted" : "");
}

}  // namespace

std::string Bar(Bytes used, Bytes lent, Bytes whole, int width) {
  const int used_cells = Cells(used, whole, width);
  const int lent_cells = std::min(width - used_cells, Cells(lent, whole, width));
  return absl::StrCat("[", std::string(used_cells, '#'), std::string(lent_cells, '='),
                      std::string(width - used_cells - lent_cells, '.'), "]");
}

std::string FitTo(const std::string& frame, int columns, int rows) {
  std::vector<std::string> lines = absl::StrSplit(frame, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const auto most = static_cast<size_t>(std::max(2, rows - 1));  // The cursor has a line too.
  if (rows > 0 && lines.size() > most) {
    const size_t hidden = lines.size() - most + 1;
    lines.resize(most - 1);
    lines.push_back(absl::StrCat("... ", hidden, " more lines; `hfctl top --once` has all"));
  }
  std::string out;
  for (std::string& line : lines) {
    if (columns > 0) line.resize(std::min(line.size(), static_cast<size_t>(columns)));
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string RenderTop(const std::string& coordinator, const v1::ListNodesResponse& nodes,
                      const v1::ListJobsResponse& jobs, int columns) {
  const int bar =
      std::min(kMostBar, std::max(kLeastColumns, columns) * kMostBar / (kTextColumns + kMostBar));
  std::string out = Headline(coordinator, nodes, jobs);
  for (const v1::NodeInfo& node : nodes.nodes()) {
    absl::StrAppendFormat(&out, "\n%s  %s  heartbeat %s ago\n", Printable(node.node()),
                          NodeStateText(node.state()), AgeText(node.heartbeat_age_s()));
    for (const v1::GpuInfo& gpu : node.gpus()) AppendGpu(gpu, bar, &out);
    absl::StrAppendFormat(&out, "  %-20s %s %4s  lent %s  of %s\n", "host memory",
                          Bar(0, node.host_lent_bytes(), node.host_lendable_bytes(), bar),
                          ShareText(node.host_lent_bytes(), node.host_lendable_bytes()),
                          FormatBytes(node.host_lent_bytes()),
                          FormatBytes(node.host_lendable_bytes()));
    for (const v1::WorkerReport& worker : node.workers()) {
      if (worker.state() != v1::WORKER_STATE_EXITED) AppendWorker(worker, bar, &out);
    }
  }
  if (nodes.nodes().empty()) {
    out += "\nno nodes; start `hfagent --coordinator " + coordinator + "` on each\n";
  }
  return out;
}

}  // namespace hyperframes
