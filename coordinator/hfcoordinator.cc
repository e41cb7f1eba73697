// hfcoordinator: membership, jobs, plans and checkpoints of a cluster. Parse, start, print the
// address, wait.
#include <glog/logging.h>

#include <iostream>
#include <memory>
#include <string>

#include "common/config.h"
#include "common/exit_code.h"
#include "common/grpc_log.h"
#include "common/listen_address.h"
#include "common/malloc_arenas.h"
#include "common/shutdown.h"
#include "common/status_macros.h"
#include "coordinator/planner/planner.h"
#include "coordinator/plans/planner_function.h"
#include "coordinator/service/coordinator_server.h"

namespace hyperframes {
namespace {

absl::StatusOr<Config::Outcome> ReadOptions(int argc, char** argv, CoordinatorOptions* options) {
  std::string listen_address = FormatHostPort(options->listen_address);
  std::string http_address = FormatHostPort(options->http_address);
  options->state_directory = "/var/lib/hyperframes/coordinator";
  Config config("hfcoordinator", "Keeps membership, jobs, plans and checkpoints of a cluster.");
  config.AddString(&listen_address, "listen-address", "where gRPC listens; port 0: any free one");
  config.AddString(&http_address, "http-address", "where /metrics and its like listen");
  config.AddString(&options->state_directory, "state-directory",
                   "local directory of the state; one coordinator at a time");
  config.AddDuration(&options->heartbeat_interval, "heartbeat-interval", "between agents' beats");
  config.AddDuration(&options->suspected_after, "suspected-after", "of silence: SUSPECTED");
  config.AddDuration(&options->offline_after, "offline-after", "of silence: OFFLINE");
  auto keep_ended_jobs = static_cast<int64_t>(options->keep_ended_jobs);
  config.AddInt(&keep_ended_jobs, "keep-ended-jobs", 1, 100000,
                "ended jobs that are remembered, the newest; older ones are NOT_FOUND");
  config.AddDuration(&options->plan_wait, "plan-wait", "for all ranks of a job to ask for a plan");
  config.AddDuration(&options->checkpoint_timeout, "checkpoint-timeout",
                     "without anything new of a checkpoint under way: aborted");
  config.AddDuration(&options->gang_patience, "gang-patience",
                     "of a job passed by smaller ones: then free GPUs are held for it");
  config.AddDuration(&options->lost_node_after, "lost-node-after",
                     "of OFFLINE: the node's workers count as ended, their jobs restart");
  HF_ASSIGN_OR_RETURN(const Config::Outcome outcome, config.Parse(argc, argv));
  if (outcome == Config::Outcome::kExit) return outcome;
  if (!config.positional().empty()) {
    return absl::InvalidArgumentError("'" + config.positional()[0].substr(0, 80) +
                                      "' is not a flag; see --help");
  }
  HF_ASSIGN_OR_RETURN(options->listen_address, ParseHostPort(listen_address));
  HF_ASSIGN_OR_RETURN(options->http_address, ParseHostPort(http_address));
  options->keep_ended_jobs = static_cast<size_t>(keep_ended_jobs);
  return outcome;
}

absl::Status Run(int argc, char** argv) {
  ShutdownSignal signal;
  CoordinatorOptions options;
  HF_ASSIGN_OR_RETURN(const Config::Outcome outcome, ReadOptions(argc, argv, &options));
  if (outcome == Config::Outcome::kExit) return absl::OkStatus();
  options.planner = PlanWith(MakeGreedyPlanner());
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorServer> server,
                      CoordinatorServer::Start(std::move(options)));
  std::cout << server->ReadyLine() << std::endl;
  signal.Wait();
  LOG(INFO) << "stopping; running jobs run on";
  server->Shutdown();
  return absl::OkStatus();
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) {
  hyperframes::UseOneMallocArena();
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  hyperframes::RouteGrpcLog();
  const absl::Status status = hyperframes::Run(argc, argv);
  if (!status.ok()) std::cerr << "hfcoordinator: " << status.message() << std::endl;
  return hyperframes::ExitCode(status);
}
