// hfagent: lends memory of one node and starts workers on it. One per node.
#include <glog/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <stdio.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "agent/service/agent_flags.h"
#include "agent/service/agent_service.h"
#include "agent/service/coordinator_link.h"
#include "agent/service/link_survey.h"
#include "agent/service/network_profile.h"
#include "agent/service/node.h"
#include "agent/service/status_pages.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/grpc_log.h"
#include "common/listen_address.h"
#include "common/malloc_arenas.h"
#include "common/shutdown.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

absl::Status Run(const AgentFlags& flags, ShutdownSignal* shutdown) {
  HF_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(flags.listen_address));
  HF_ASSIGN_OR_RETURN(const HostPort http_listen, ParseHostPort(flags.http_address));
  HF_ASSIGN_OR_RETURN(const HostPort coordinator, ParseHostPort(flags.coordinator));
  HF_RETURN_IF_ERROR(RequireLoopback(listen, /*has_tls=*/false));
  HF_RETURN_IF_ERROR(RequireLoopback(http_listen, /*has_tls=*/false));
  HF_ASSIGN_OR_RETURN(std::unique_ptr<GpuMachine> machine, OpenMachine(flags));
  HF_ASSIGN_OR_RETURN(const v1::NetworkProfile network,
                      DescribeNetwork(flags.network_bandwidth, flags.network_latency,
                                      /*real=*/machine->backend() != "host"));
  NodeOptions node_options = NodeOptionsOf(flags, *machine);
  if (machine->backend() == "host") {
    node_options.network_bandwidth = flags.simulated_network_bandwidth > 0
                                         ? flags.simulated_network_bandwidth
                                         : static_cast<Bytes>(network.bytes_per_second());
  }
  node_options.network_promised = network.bytes_per_second();
  node_options.network_kind = network.kind();
  HF_ASSIGN_OR_RETURN(const auto node, Node::Create(std::move(node_options), std::move(machine)));

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
    return absl::UnavailableError("cannot listen on " + flags.listen_address +
                                  "; is another agent running? Port 0 lets the kernel choose");
  }
  const auto measured = [&link](const LinkReport& report) {
    if (CoordinatorLink* const started = link.load()) started->SetLinks(report.links);
  };
  auto survey = std::make_unique<LinkSurvey>(SurveyOptionsOf(flags), node->machine(), measured);
  HF_ASSIGN_OR_RETURN(auto http,
                      HttpServer::Start(http_listen, StatusPages(node.get(), &link, survey.get())));

  CoordinatorLinkOptions options;
  options.coordinator = FormatHostPort(coordinator);
  options.agent_address = FormatHostPort({listen.host, port});
  options.http_address = FormatHostPort({http_listen.host, http->port()});
  options.links = survey->report().links;
  options.network = network;
  {
    CoordinatorLink running(options, node.get(), &fence);
    link = &running;
    running.SetLinks(survey->report().links);  // Those that came in between.
    printf("hfagent ready: node=%s grpc=%s http=%s socket=%s\n", flags.node.c_str(),
           options.agent_address.c_str(), options.http_address.c_str(),
           node->worker_socket().c_str());
    fflush(stdout);
    shutdown->Wait();
    LOG(INFO) << "stopping; workers keep running, and the next agent of " << flags.run_directory
              << " adopts them";
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    http.reset();
    survey.reset();
    link = nullptr;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) {
  hyperframes::UseOneMallocArena();
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  hyperframes::RouteGrpcLog();
  hyperframes::ShutdownSignal shutdown;
  hyperframes::AgentFlags flags;
  hyperframes::Config config("hfagent", "Lends memory of one node and starts workers on it.");
  hyperframes::AddAgentFlags(&flags, &config);
  const auto outcome = config.Parse(argc, argv);
  if (outcome.ok() && *outcome == hyperframes::Config::Outcome::kExit) return 0;
  const absl::Status status = outcome.ok() ? hyperframes::Run(flags, &shutdown) : outcome.status();
  if (!status.ok()) fprintf(stderr, "hfagent: %s\n", std::string(status.message()).c_str());
  return hyperframes::ExitCode(status);
}
