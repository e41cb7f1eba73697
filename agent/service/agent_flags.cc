#include "agent/service/agent_flags.h"

#include <glog/logging.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/arena/lent_gpus.h"
#include "agent/device/host/host_machine.h"
#include "common/host_limits.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kHost = "host";
constexpr const char* kCuda = "cuda";
constexpr const char* kOneSimulated = "1 x 1GiB";

std::string BesideThisProgram(const std::string& name) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, length > 0 ? length : 0);
  return self.substr(0, self.rfind('/') + 1) + name;
}

std::string ProbePathOf(const AgentFlags& flags) {
  return flags.probe_path.empty() ? BesideThisProgram("hfprobe") : flags.probe_path;
}

// What --host-bytes asks for, as far as this process may have it; what is missing is said.
Bytes LendableHostBytes(Bytes asked) {
  const HostBudget budget = FitHostBudget(asked, "--host-bytes", ReadHostLimits());
  if (!budget.sentence.empty()) LOG(WARNING) << budget.sentence;
  return budget.bytes;
}

absl::StatusOr<std::unique_ptr<GpuMachine>> OpenSimulated(const AgentFlags& flags) {
  HostMachineOptions options;
  options.node = flags.node;
  options.host_bytes = LendableHostBytes(flags.host_bytes.value_or(kGiB));
  const std::string& gpus = flags.simulated_gpus;
  HF_ASSIGN_OR_RETURN(options.devices,
                      ParseHostDevices(gpus.empty() ? kOneSimulated : gpus, flags.node));
  for (HostDeviceOptions& gpu : options.devices) {
    if (flags.peer_bandwidth > 0) gpu.peer_bandwidth = flags.peer_bandwidth;
    if (flags.host_bandwidth > 0) gpu.host_bandwidth = flags.host_bandwidth;
  }
  HF_ASSIGN_OR_RETURN(std::unique_ptr<HostMachine> machine,
                      HostMachine::Create(std::move(options)));
  return std::unique_ptr<GpuMachine>(std::move(machine));
}

}  // namespace

void AddAgentFlags(AgentFlags* flags, Config* config) {
  config->AddString(&flags->node, "node", "name of this node, unique in the cluster");
  config->AddString(&flags->coordinator, "coordinator", "where hfcoordinator listens");
  config->AddString(&flags->listen_address, "listen-address", "where to serve gRPC");
  config->AddString(&flags->http_address, "http-address", "where to serve /metrics and /statusz");
  config->AddString(&flags->run_directory, "run-directory",
                    "sockets, logs, and what survives a restart");
  config->AddString(&flags->backend, "backend",
                    "'cuda' lends real GPUs, 'host' simulated ones; 'auto': real ones where a "
                    "driver sees some and --simulated-gpus is not given");
  config->AddString(&flags->simulated_gpus, "simulated-gpus",
                    "GPUs to simulate: '2 x 1GiB' or '1GiB,512MiB'; empty: one of 1GiB");
  config->AddString(&flags->shim_path, "shim-path", "the hfshim binary; beside hfagent if empty");
  config->AddString(&flags->probe_path, "probe-path",
                    "the hfprobe binary, which speaks to the CUDA driver; beside hfagent if empty");
  config->AddOptionalBytes(&flags->host_bytes, "host-bytes",
                           "host memory to lend; auto: 1GiB, with real GPUs half of what is free");
  config->AddBytes(&flags->peer_bandwidth, "peer-bandwidth",
                   "bytes/s between simulated GPUs; 0 = as fast as memory");
  config->AddBytes(&flags->host_bandwidth, "host-bandwidth",
                   "bytes/s between a simulated GPU and host memory; 0 = as fast as memory");
  config->AddString(&flags->network_bandwidth, "network-bandwidth",
                    "bytes/s of frames to and from other nodes, each way; 'auto': what the fastest "
                    "network promises; 'off': no frame leaves or enters this node");
  config->AddBytes(&flags->simulated_network_bandwidth, "simulated-network-bandwidth",
                   "bytes/s that simulated GPUs' network really carries, each way; 0 = what "
                   "--network-bandwidth says");
  config->AddDuration(&flags->network_latency, "network-latency",
                      "of one copy to or from another node");
  config->AddOptionalBytes(&flags->reserve_bytes, "reserve-bytes",
                           "bytes of each GPU that are never lent; auto: 0, of real GPUs 1GiB");
  config->AddInt(&flags->keep_ended_workers, "keep-ended-workers", 0, 100000,
                 "ended workers of finished jobs whose logs are kept, the newest");
  config->AddDuration(&flags->keep_ended_for, "keep-ended-for",
                      "how long those logs are kept at most");
}

absl::StatusOr<std::unique_ptr<GpuMachine>> OpenMachine(const AgentFlags& flags) {
  if (flags.backend != "auto" && flags.backend != kHost && flags.backend != kCuda) {
    return absl::InvalidArgumentError(absl::StrCat("--backend=", flags.backend.substr(0, 64),
                                                   ": there are 'cuda', 'host' and 'auto'"));
  }
  if (flags.backend == kHost || !flags.simulated_gpus.empty()) {
    if (flags.backend == kCuda) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--backend=cuda lends real GPUs, and --simulated-gpus=",
          flags.simulated_gpus.substr(0, 64), " asks for simulated ones: give one of the two"));
    }
    return OpenSimulated(flags);
  }
  LentGpusOptions options;
  options.node = flags.node;
  options.host_bytes = flags.host_bytes ? LendableHostBytes(*flags.host_bytes) : -1;
  options.program = ProbePathOf(flags);
  absl::StatusOr<std::unique_ptr<GpuMachine>> cuda = OpenLentGpus(options);
  if (cuda.ok()) return cuda;
  const bool has_none = absl::IsNotFound(cuda.status()) || absl::IsUnimplemented(cuda.status());
  if (flags.backend == kCuda || !has_none) return cuda.status();
  LOG(INFO) << "lending simulated GPUs: " << cuda.status().message();
  return OpenSimulated(flags);
}

NodeOptions NodeOptionsOf(const AgentFlags& flags, const GpuMachine& machine) {
  NodeOptions options;
  options.name = flags.node;
  options.run_directory = flags.run_directory;
  options.shim_path = flags.shim_path.empty() ? BesideThisProgram("hfshim") : flags.shim_path;
  options.reserve_bytes = flags.reserve_bytes.value_or(machine.backend() == kCuda ? kGiB : 0);
  options.most_ended_kept = static_cast<size_t>(flags.keep_ended_workers);
  options.ended_kept_for = flags.keep_ended_for;
  return options;
}

LinkSurveyOptions SurveyOptionsOf(const AgentFlags& flags) {
  LinkSurveyOptions options;
  options.node = flags.node;
  options.probe_path = ProbePathOf(flags);
  options.kept_path = flags.run_directory + "/links";
  return options;
}

}  // namespace hyperframes
