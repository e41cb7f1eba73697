#include "client/doctor/report.h"

#include <nlohmann/json.hpp>

namespace hyperframes {
namespace doctor {
namespace {

using Json = nlohmann::ordered_json;

Json GpuJson(const GpuFacts& gpu) {
  return {{"uuid", gpu.uuid},
          {"name", gpu.name},
          {"simulated", gpu.simulated},
          {"visible", gpu.visible},
          {"nvlinks", gpu.nvlinks},
          {"nvlink_version", gpu.nvlink_version},
          {"pcie_generation", gpu.pcie_generation},
          {"most_pcie_generation", gpu.most_pcie_generation},
          {"pcie_width", gpu.pcie_width},
          {"most_pcie_width", gpu.most_pcie_width}};
}

Json HostJson(const HostFacts& host) {
  Json json = {{"shared_memory_bytes", host.shared_memory_bytes},
               {"available_bytes", host.available_bytes},
               {"may_lock_all", host.is_root || !host.memlock.has_value()},
               {"own_pid_namespace", host.own_pid_namespace},
               {"own_ipc_namespace", host.own_ipc_namespace}};
  if (host.memlock.has_value()) json["memlock_bytes"] = *host.memlock;
  if (host.memory_limit.has_value()) {
    json["memory_limit_bytes"] = *host.memory_limit;
    json["memory_used_bytes"] = host.memory_used;
  }
  return json;
}

Json PathJson(const PathFacts& path, const Facts& facts) {
  const Promise promise = PromiseOf(path, facts);
  Json json = {
      {"kind", KindText(path.kind)}, {"from", path.from}, {"to", path.to}, {"link", path.link}};
  if (path.out_of_time) {
    json["out_of_time"] = true;
  } else if (!path.status.ok()) {
    if (path.untried) json["untried"] = true;
    json["error"] = std::string(path.status.message());
  } else {
    json["bytes_per_second"] = path.bytes_per_second;
    json["latency_s"] = absl::ToDoubleSeconds(path.latency);
  }
  if (promise.bytes_per_second > 0) {
    json["promised_bytes_per_second"] = promise.bytes_per_second;
    json["promised_by"] = promise.by;
  }
  return json;
}

Json FindingJson(const Finding& finding) {
  return {{"severity", SeverityText(finding.severity)},
          {"subject", finding.subject},
          {"measured", finding.measured},
          {"promised", finding.promised},
          {"cause", finding.cause},
          {"remedy", finding.remedy}};
}

}  // namespace

std::string SeverityText(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kBroken:
      return "broken";
  }
  return "unknown";
}

std::string KindText(PathKind kind) {
  switch (kind) {
    case PathKind::kPeer:
      return "peer";
    case PathKind::kToHost:
      return "to-host";
    case PathKind::kFromHost:
      return "from-host";
    case PathKind::kAllReduce:
      return "all-reduce";
    case PathKind::kSendReceive:
      return "send-receive";
  }
  return "unknown";
}

std::string ReportJson(const Facts& facts, const Diagnosis& diagnosis) {
  Json report = {{"healthy", diagnosis.healthy},
                 {"verdict", diagnosis.verdict},
                 {"elapsed_s", absl::ToDoubleSeconds(facts.elapsed)},
                 {"driver_version", facts.driver_version},
                 {"host", HostJson(facts.host)}};
  report["gpus"] = Json::array();
  for (const GpuFacts& gpu : facts.gpus) report["gpus"].push_back(GpuJson(gpu));
  report["paths"] = Json::array();
  for (const PathFacts& path : facts.paths) report["paths"].push_back(PathJson(path, facts));
  report["findings"] = Json::array();
  for (const Finding& finding : diagnosis.findings) {
    report["findings"].push_back(FindingJson(finding));
  }
  // A message of the system may hold anything; a report must never fail over it.
  return report.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace doctor
}  // namespace hyperframes
