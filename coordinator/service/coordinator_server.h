// Everything a coordinator is, put together: store, membership, jobs, plans, checkpoints, and their
// servers.
#ifndef HYPERFRAMES_COORDINATOR_SERVICE_COORDINATOR_SERVER_H_
#define HYPERFRAMES_COORDINATOR_SERVICE_COORDINATOR_SERVER_H_

#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/http_server.h"
#include "common/listen_address.h"
#include "common/mutex.h"
#include "coordinator/checkpoints/checkpoint_book.h"
#include "coordinator/checkpoints/checkpoint_desk.h"
#include "coordinator/jobs/attach_desk.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/jobs/worker_reports.h"
#include "coordinator/plans/lease_reclaimer.h"
#include "coordinator/plans/plan_desk.h"
#include "coordinator/service/checkpoint_service.h"
#include "coordinator/service/grpc_agent_client.h"
#include "coordinator/service/membership_service.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/user_services.h"
#include "coordinator/service/waiting_calls.h"
#include "coordinator/store/leader_store.h"
#include "coordinator/store/sqlite_store.h"

namespace hyperframes {

struct CoordinatorOptions {
  HostPort listen_address{"127.0.0.1", 7461};
  HostPort http_address{"127.0.0.1", 7462};
  std::string state_directory;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration suspected_after = absl::Seconds(3);
  absl::Duration offline_after = absl::Seconds(10);
  absl::Duration plan_wait = absl::Seconds(60);
  absl::Duration checkpoint_timeout = absl::Minutes(10);
  absl::Duration gang_patience = Reconciler::Options().gang_patience;
  absl::Duration lost_node_after = Reconciler::Options().lost_node_after;
  size_t keep_ended_jobs =
      JobBook::Options().max_finished;  // The newest; older ones are forgotten.
  int max_waiting_calls = 1200;         // One job of the largest size, and some that watch.
  int max_rpc_threads = 1264;
  PlanFunction planner;
};

class CoordinatorServer {
 public:
  // Opens the state, takes leadership, goes on with what was under way and serves.
  // InvalidArgument: durations out of order. FailedPrecondition: an address that is not loopback,
  // or the state directory is in use. Unavailable: an address cannot be bound. DataLoss: damaged
  // state.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(CoordinatorOptions options);

  // Stops as Shutdown does.
  ~CoordinatorServer();
  // Answers what waits with Unavailable, and ends. Running jobs run on. Idempotent.
  void Shutdown();

  int grpc_port() const { return grpc_port_; }
  int http_port() const { return http_->port(); }
  int64_t epoch() const { return store_->epoch(); }
  // "hfcoordinator ready: grpc=127.0.0.1:PORT http=127.0.0.1:PORT"
  std::string ReadyLine() const;

  // What /metrics answers.
  std::string MetricsText() { return Metrics().body; }
  int waiting_calls() const { return waiting_.waiting(); }
  // For tests: what the RPC threads lock.
  NodeRegistry* registry() { return registry_.get(); }

 private:
  explicit CoordinatorServer(CoordinatorOptions options);

  absl::Status OpenState();
  absl::Status OpenCheckpoints();
  // Leases of the job on nodes that can be asked.
  int LeasesHeld(const std::string& job) const;
  absl::Status ServeGrpc();
  absl::Status ServeHttp();
  void StartThreads();
  void TickLoop();
  HttpResponse Metrics();
  HttpResponse Ready();
  HttpResponse Status();

  const CoordinatorOptions options_;
  const Clock* const clock_;
  CoordinatorMetrics metrics_;
  WaitingCalls waiting_;
  GrpcAgentClient agents_;
  std::unique_ptr<SqliteStore> sqlite_;
  std::unique_ptr<LeaderStore> store_;
  HeartbeatLedger ledger_;
  std::unique_ptr<NodeRegistry> registry_;
  std::unique_ptr<JobBook> jobs_;
  std::unique_ptr<LeaseBook> leases_;
  std::unique_ptr<WorkerReports> workers_;
  std::unique_ptr<PlanDesk> plans_;
  std::unique_ptr<CheckpointBook> checkpoint_book_;
  std::unique_ptr<CheckpointDesk> checkpoints_;
  std::unique_ptr<AttachDesk> attach_;
  std::unique_ptr<Reconciler> reconciler_;
  std::unique_ptr<LeaseReclaimer> reclaimer_;

  HeartbeatAsyncService membership_service_;
  std::unique_ptr<ClusterService> cluster_service_;
  std::unique_ptr<JobsService> jobs_service_;
  std::unique_ptr<PlansService> plans_service_;
  std::unique_ptr<CheckpointsService> checkpoints_service_;
  std::unique_ptr<HeartbeatLoop> heartbeats_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<HttpServer> http_;
  int grpc_port_ = 0;

  std::thread ticker_;
  Mutex mutex_;
  CondVar stop_changed_;
  bool stop_ HF_GUARDED_BY(mutex_) = false;
  bool shut_down_ = false;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_SERVICE_COORDINATOR_SERVER_H_
