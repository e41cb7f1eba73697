// hfagent: lends memory of one node and starts workers on it. One per node.
#include <fcntl.h>
#include <glog/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <stdio.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "agent/service/agent_service.h"
#include "agent/service/coordinator_link.h"
#include "agent/service/link_report.h"
#include "agent/service/node.h"
#include "agent/service/status_pages.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/listen_address.h"
#include "common/shutdown.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

struct Flags {
  std::string node = "local";
  std::string coordinator = "127.0.0.1:7461";
  std::string listen_address = "127.0.0.1:7463";
  std::string http_address = "127.0.0.1:7464";
  std::string run_directory = "/tmp/hyperframes";
  std::string simulated_gpus = "1 x 1GiB";
  std::string shim_path;
  Bytes host_bytes = kGiB;
  Bytes peer_bandwidth = 0;
  Bytes host_bandwidth = 0;
  Bytes reserve_bytes = 0;
  int64_t keep_ended_workers = 256;
  absl::Duration keep_ended_for = absl::Hours(7 * 24);
};

void AddFlags(Flags* flags, Config* config) {
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

std::string BesideThisProgram(const std::string& name) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, length > 0 ? length : 0);
  return self.substr(0, self.rfind('/') + 1) + name;
}

absl::StatusOr<NodeOptions> NodeOptionsOf(const Flags& flags) {
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

absl::Status Run(const Flags& flags, ShutdownSignal* shutdown) {
  HF_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(flags.listen_address));
  HF_ASSIGN_OR_RETURN(const HostPort http_listen, ParseHostPort(flags.http_address));
  HF_ASSIGN_OR_RETURN(const HostPort coordinator, ParseHostPort(flags.coordinator));
  HF_RETURN_IF_ERROR(RequireLoopback(listen, /*has_tls=*/false));
  HF_RETURN_IF_ERROR(RequireLoopback(http_listen, /*has_tls=*/false));
  HF_ASSIGN_OR_RETURN(NodeOptions node_options, NodeOptionsOf(flags));
  HF_ASSIGN_OR_RETURN(const auto node, Node::Create(std::move(node_options)));

  EpochFence fence;
  HF_RETURN_IF_ERROR(fence.Open(flags.run_directory + "/epoch"));
  std::atomic<CoordinatorLink*> link{nullptr};
  AgentService service(node.get(), &fence, [&link] {
    if (CoordinatorLink* const started = link.load()) started->NotifyChanged();
  });
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(FormatHostPort(listen), grpc::InsecureServerCredentials(), &port);
  // Otherwise a second agent could share the port and take half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError("--listen-address " + flags.listen_address +
                                  " cannot be bound: is it in use? :0 takes any free port");
  }
  HF_ASSIGN_OR_RETURN(auto http, HttpServer::Start(http_listen, StatusPages(node.get(), &link)));

  CoordinatorLinkOptions options;
  options.coordinator = FormatHostPort(coordinator);
  options.agent_address = FormatHostPort({listen.host, port});
  options.http_address = FormatHostPort({http_listen.host, http->port()});
  options.links = MeasureLinks(node->machine());
  {
    CoordinatorLink running(options, node.get(), &fence);
    link = &running;
    printf("hfagent ready: node=%s grpc=%s http=%s socket=%s\n", flags.node.c_str(),
           options.agent_address.c_str(), options.http_address.c_str(),
           node->worker_socket().c_str());
    fflush(stdout);
    shutdown->Wait();
    LOG(INFO) << "stopping; workers keep running, and the next agent of " << flags.run_directory
              << " adopts them";
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    http.reset();
    link = nullptr;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  hyperframes::ShutdownSignal shutdown;
  hyperframes::Flags flags;
  hyperframes::Config config("hfagent", "Lends memory of one node and starts workers on it.");
  hyperframes::AddFlags(&flags, &config);
  const auto outcome = config.Parse(argc, argv);
  if (outcome.ok() && *outcome == hyperframes::Config::Outcome::kExit) return 0;
  const absl::Status status = outcome.ok() ? hyperframes::Run(flags, &shutdown) : outcome.status();
  if (!status.ok()) fprintf(stderr, "hfagent: %s\n", std::string(status.message()).c_str());
  return hyperframes::ExitCode(status);
}
