#include "coordinator/service/coordinator_server.h"

#include <glog/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/checkpoints/checkpoint_state.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/membership/node_state.h"
#include "coordinator/service/wall_clock.h"

namespace hyperframes {
namespace {

// Profiles of 1,000 blocks are some hundred KiB; a longer message is a mistake.
constexpr int kMaxMessageBytes = 32 * 1024 * 1024;

const Clock* WallTime() {
  static const auto* const kClock = new WallClock;
  return kClock;
}

absl::Status CheckOptions(const CoordinatorOptions& options) {
  HF_RETURN_IF_ERROR(RequireLoopback(options.listen_address, /*has_tls=*/false));
  HF_RETURN_IF_ERROR(RequireLoopback(options.http_address, /*has_tls=*/false));
  if (options.state_directory.empty()) {
    return absl::InvalidArgumentError("--state-directory is empty; name a local directory");
  }
  if (options.heartbeat_interval <= absl::ZeroDuration() ||
      options.suspected_after < 2 * options.heartbeat_interval ||
      options.offline_after <= options.suspected_after) {
    return absl::InvalidArgumentError(
        absl::StrCat("--heartbeat-interval ", absl::FormatDuration(options.heartbeat_interval),
                     ", --suspected-after ", absl::FormatDuration(options.suspected_after),
                     ", --offline-after ", absl::FormatDuration(options.offline_after),
                     ": suspicion takes at least two intervals, and OFFLINE comes after it"));
  }
  if (options.plan_wait <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--plan-wait must be longer than 0");
  }
  if (options.checkpoint_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--checkpoint-timeout must be longer than 0");
  }
  if (options.gang_patience < absl::ZeroDuration() ||
      options.lost_node_after < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--gang-patience and --lost-node-after are 0 or longer");
  }
  return absl::OkStatus();
}

}  // namespace

CoordinatorServer::CoordinatorServer(CoordinatorOptions options)
    : options_(std::move(options)),
      clock_(MonotonicClock()),
      waiting_(options_.max_waiting_calls),
      ledger_(clock_, [this](absl::Duration gap) { metrics_.HeartbeatGap(gap); }) {}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    CoordinatorOptions options) {
  HF_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<CoordinatorServer> server(new CoordinatorServer(std::move(options)));
  HF_RETURN_IF_ERROR(server->OpenState());
  HF_RETURN_IF_ERROR(server->ServeGrpc());
  HF_RETURN_IF_ERROR(server->ServeHttp());
  server->StartThreads();
  return server;
}

absl::Status CoordinatorServer::OpenState() {
  SqliteStore::Options sqlite;
  sqlite.on_commit = [this](absl::Duration took) { metrics_.StoreCommit(took); };
  HF_ASSIGN_OR_RETURN(sqlite_, SqliteStore::Open(options_.state_directory, sqlite));
  HF_ASSIGN_OR_RETURN(store_, LeaderStore::TakeLeadership(sqlite_.get()));
  NodeRegistry::Options registry;
  registry.suspected_after = options_.suspected_after;
  registry.offline_after = options_.offline_after;
  registry.tick_interval = options_.heartbeat_interval / 4;
  registry_ = std::make_unique<NodeRegistry>(registry, clock_, &ledger_);
  JobBook::Options jobs;
  // Explanations raise versions without the store: a new leadership starts above them all.
  jobs.first_version = store_->epoch() << 32;
  jobs.max_finished = options_.keep_ended_jobs;
  jobs.companion_prefixes = {"plans/"};
  HF_ASSIGN_OR_RETURN(jobs_, JobBook::Load(jobs, store_.get(), WallTime()));
  HF_ASSIGN_OR_RETURN(leases_, LeaseBook::Load(store_.get(), [this](const std::string& reason) {
                        metrics_.LeaseRecordEnded(reason);
                      }));
  workers_ = std::make_unique<WorkerReports>(jobs_.get());
  PlanDesk::Options plans;
  plans.epoch = store_->epoch();
  plans.wait = options_.plan_wait;
  plans.on_plan = [this](absl::Duration took, int64_t epoch) { metrics_.PlanMade(took, epoch); };
  plans_ = std::make_unique<PlanDesk>(plans, options_.planner, jobs_.get(), leases_.get(),
                                      registry_.get(), &agents_, clock_);
  HF_RETURN_IF_ERROR(OpenCheckpoints());
  reclaimer_ = std::make_unique<LeaseReclaimer>(store_->epoch(), leases_.get(), jobs_.get(),
                                                registry_.get(), &agents_, clock_);
  attach_ = std::make_unique<AttachDesk>(store_->epoch(), jobs_.get(), registry_.get(), &agents_);
  Reconciler::Options reconciler;
  reconciler.epoch = store_->epoch();
  reconciler.gang_patience = options_.gang_patience;
  reconciler.lost_node_after = options_.lost_node_after;
  reconciler_ =
      std::make_unique<Reconciler>(reconciler, jobs_.get(), registry_.get(), &agents_, clock_);
  reconciler_->set_leases_held([this](const std::string& job) { return LeasesHeld(job); });
  reconciler_->set_also([this] {
    reclaimer_->RunOnce();
    checkpoints_->Sweep();
  });
  jobs_->set_on_change([this] { reconciler_->Wake(); });
  return absl::OkStatus();
}

absl::Status CoordinatorServer::OpenCheckpoints() {
  HF_ASSIGN_OR_RETURN(checkpoint_book_,
                      CheckpointBook::Load(CheckpointBook::Options(), store_.get(), WallTime()));
  CheckpointDesk::Options desk;
  desk.timeout = options_.checkpoint_timeout;
  desk.on_commit = [this](absl::Duration save) { metrics_.CheckpointCommitted(save); };
  desk.on_abort = [this](const std::string& reason) { metrics_.CheckpointAborted(reason); };
  checkpoints_ =
      std::make_unique<CheckpointDesk>(desk, checkpoint_book_.get(), jobs_.get(), clock_);
  return absl::OkStatus();
}

// Of a node that is OFFLINE they are reclaimed when it is back, and nobody is seated there before.
int CoordinatorServer::LeasesHeld(const std::string& job) const {
  const std::vector<v1::LeaseRecord> leases = leases_->OfJob(job);
  return static_cast<int>(std::count_if(leases.begin(), leases.end(), [this](const auto& lease) {
    const absl::StatusOr<Node> node = registry_->Find(lease.node());
    if (!node.ok()) return !reconciler_->IsLost(lease.node());
    return node->info.state() != v1::NODE_STATE_OFFLINE;
  }));
}

absl::Status CoordinatorServer::ServeGrpc() {
  MembershipParts membership;
  membership.registry = registry_.get();
  membership.ledger = &ledger_;
  membership.workers = workers_.get();
  membership.leases = leases_.get();
  membership.metrics = &metrics_;
  membership.wake = [this] { reconciler_->Wake(); };
  membership.epoch = store_->epoch();
  membership.heartbeat_interval = options_.heartbeat_interval;
  membership.suspected_after = options_.suspected_after;
  membership.offline_after = options_.offline_after;
  membership_service_.Bind(membership);
  UserParts user;
  user.registry = registry_.get();
  user.jobs = jobs_.get();
  user.plans = plans_.get();
  user.attach = attach_.get();
  user.agents = &agents_;
  user.metrics = &metrics_;
  user.waiting = &waiting_;
  user.epoch = store_->epoch();
  cluster_service_ = std::make_unique<ClusterService>(user);
  jobs_service_ = std::make_unique<JobsService>(user);
  plans_service_ = std::make_unique<PlansService>(user);
  checkpoints_service_ =
      std::make_unique<CheckpointsService>(checkpoints_.get(), &metrics_, &waiting_);

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("coordinator");
  quota.SetMaxThreads(options_.max_rpc_threads);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Two coordinators on one port would each see half of the agents.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Agents and watchers keep idle channels: their pings are no abuse (client keepalive is >= 10 s).
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddListeningPort(FormatHostPort(options_.listen_address),
                           grpc::InsecureServerCredentials(), &grpc_port_);
  builder.RegisterService(&membership_service_);
  builder.RegisterService(cluster_service_.get());
  builder.RegisterService(jobs_service_.get());
  builder.RegisterService(plans_service_.get());
  builder.RegisterService(checkpoints_service_.get());
  heartbeats_ = std::make_unique<HeartbeatLoop>(&membership_service_, builder.AddCompletionQueue(),
                                                &ledger_, &metrics_, store_->epoch());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || grpc_port_ == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ",
                                               FormatHostPort(options_.listen_address),
                                               "; is another coordinator running? Port 0 lets the "
                                               "kernel choose"));
  }
  heartbeats_->Start();
  return absl::OkStatus();
}

absl::Status CoordinatorServer::ServeHttp() {
  HttpServer::Handlers handlers;
  handlers["/metrics"] = [this] { return Metrics(); };
  handlers["/livez"] = [] { return HttpResponse{200, "text/plain; charset=utf-8", "ok\n"}; };
  handlers["/readyz"] = [this] { return Ready(); };
  handlers["/statusz"] = [this] { return Status(); };
  HF_ASSIGN_OR_RETURN(http_, HttpServer::Start(options_.http_address, std::move(handlers)));
  return absl::OkStatus();
}

void CoordinatorServer::StartThreads() {
  reconciler_->set_coordinator_address(
      FormatHostPort(HostPort{options_.listen_address.host, grpc_port_}));
  reconciler_->Start();
  ticker_ = std::thread([this] { TickLoop(); });
}

void CoordinatorServer::TickLoop() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      stop_changed_.WaitFor(&mutex_, options_.heartbeat_interval / 4,
                            [this]() HF_NO_THREAD_SAFETY_ANALYSIS { return stop_; });
      if (stop_) return;
    }
    registry_->Tick();
  }
}

CoordinatorServer::~CoordinatorServer() { Shutdown(); }

void CoordinatorServer::Shutdown() {
  if (shut_down_) return;
  shut_down_ = true;
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  if (jobs_ != nullptr) jobs_->Stop();
  if (plans_ != nullptr) plans_->Stop();
  if (checkpoints_ != nullptr) checkpoints_->Stop();
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  }
  heartbeats_.reset();  // Drains its queue, which the server's end needs.
  if (server_ != nullptr) server_->Wait();
  http_.reset();
  if (ticker_.joinable()) ticker_.join();
  if (reconciler_ != nullptr) reconciler_->Stop();
}

std::string CoordinatorServer::ReadyLine() const {
  return absl::StrCat("hfcoordinator ready: grpc=",
                      FormatHostPort(HostPort{options_.listen_address.host, grpc_port_}), " http=",
                      FormatHostPort(HostPort{options_.http_address.host, http_->port()}));
}

HttpResponse CoordinatorServer::Metrics() {
  CoordinatorMetrics::Snapshot snapshot;
  registry_->Visit([&](const Node& node) { ++snapshot.nodes[node.info.state()]; });
  snapshot.jobs = jobs_->CountByState();
  snapshot.checkpoints = checkpoint_book_->CountByState();
  snapshot.lent_bytes = leases_->lent_bytes();
  snapshot.epoch = store_->epoch();
  snapshot.stalls = registry_->stalls();
  snapshot.waiting_calls = waiting_.waiting();
  return HttpResponse{200, "text/plain; version=0.0.4; charset=utf-8", metrics_.Render(snapshot)};
}

HttpResponse CoordinatorServer::Ready() {
  const absl::Status store = store_->List("leader/", 1).status();
  if (store.ok()) return HttpResponse{200, "text/plain; charset=utf-8", "ok\n"};
  return HttpResponse{503, "text/plain; charset=utf-8", absl::StrCat(store.message(), "\n")};
}

HttpResponse CoordinatorServer::Status() {
  std::string text =
      absl::StrCat("coordinator, leadership epoch ", store_->epoch(), "\nstate in ",
                   options_.state_directory, "\nown stalls noticed: ", registry_->stalls(),
                   "\nlent bytes: ", leases_->lent_bytes(), "\nnodes:\n");
  for (const Node& node : registry_->List()) {
    absl::StrAppend(&text, "  ", node.info.node(), " ", NodeStateName(node.info.state()), " ",
                    node.info.agent_address(), " gpus=", node.info.gpus_size(), "\n");
  }
  absl::StrAppend(&text, "jobs:\n");
  for (const auto& count : jobs_->CountByState()) {
    absl::StrAppend(&text, "  ", JobStateName(count.first), " ", count.second, "\n");
  }
  absl::StrAppend(&text, "checkpoints:\n");
  for (const auto& count : checkpoint_book_->CountByState()) {
    absl::StrAppend(&text, "  ", CheckpointStateName(count.first), " ", count.second, "\n");
  }
  return HttpResponse{200, "text/plain; charset=utf-8", text};
}

}  // namespace hyperframes
