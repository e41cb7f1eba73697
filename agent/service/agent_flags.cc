#include "agent/service/agent_flags.h"

#include <unistd.h>

#include <utility>

#include "common/status_macros.h"

namespace hyperframes {
namespace {

std::string BesideThisProgram(const std::string& name) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, length > 0 ? length : 0);
  return self.substr(0, self.rfind('/') + 1) + name;
}

}  // namespace

void AddAgentFlags(AgentFlags* flags, Config* config) {
  config->AddString(&flags->node, "node", "name of this node, unique in the cluster");
  config->AddString(&flags->coordinator, "coordinator", "where hfcoordinator listens");
  config->AddString(&flags->listen_address, "listen-address", "where to serve gRPC");
  config->AddString(&flags->http_address, "http-address", "where to serve /metrics and /statusz");
  config->AddString(&flags->run_directory, "run-directory",
                    "sockets, logs, and what survives a restart");
  config->AddString(&flags->simulated_gpus, "simulated-gpus",
                    "GPUs to simulate: '2 x 1GiB' or '1GiB,512MiB'");
  config->AddString(&flags->shim_path, "shim-path", "the hfshim binary; beside hfagent if empty");
  config->AddBytes(&flags->host_bytes, "host-bytes", "host memory to lend");
  config->AddBytes(&flags->peer_bandwidth, "peer-bandwidth",
                   "bytes/s between simulated GPUs; 0 = as fast as memory");
  config->AddBytes(&flags->host_bandwidth, "host-bandwidth",
                   "bytes/s between a simulated GPU and host memory; 0 = as fast as memory");
  config->AddBytes(&flags->reserve_bytes, "reserve-bytes", "bytes of each GPU that are never lent");
  config->AddInt(&flags->keep_ended_workers, "keep-ended-workers", 0, 100000,
                 "ended workers of finished jobs whose logs are kept, the newest");
  config->AddDuration(&flags->keep_ended_for, "keep-ended-for",
                      "how long those logs are kept at most");
}

absl::StatusOr<NodeOptions> NodeOptionsOf(const AgentFlags& flags) {
  NodeOptions options;
  options.name = flags.node;
  options.run_directory = flags.run_directory;
  options.shim_path = flags.shim_path.empty() ? BesideThisProgram("hfshim") : flags.shim_path;
  options.reserve_bytes = flags.reserve_bytes;
  options.most_ended_kept = static_cast<size_t>(flags.keep_ended_workers);
  options.ended_kept_for = flags.keep_ended_for;
  options.machine.node = flags.node;
  options.machine.host_bytes = flags.host_bytes;
  HF_ASSIGN_OR_RETURN(options.machine.devices, ParseHostDevices(flags.simulated_gpus, flags.node));
  for (HostDeviceOptions& gpu : options.machine.devices) {
    if (flags.peer_bandwidth > 0) gpu.peer_bandwidth = flags.peer_bandwidth;
    if (flags.host_bandwidth > 0) gpu.host_bandwidth = flags.host_bandwidth;
  }
  return options;
}

}  // namespace hyperframes
