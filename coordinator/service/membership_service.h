// Membership over gRPC. Heartbeats have a completion queue and a thread of their own.
#ifndef HYPERFRAMES_COORDINATOR_SERVICE_MEMBERSHIP_SERVICE_H_
#define HYPERFRAMES_COORDINATOR_SERVICE_MEMBERSHIP_SERVICE_H_

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "coordinator/jobs/worker_reports.h"
#include "coordinator/membership/heartbeat_ledger.h"
#include "coordinator/membership/node_registry.h"
#include "coordinator/plans/lease_book.h"
#include "coordinator/service/metrics.h"
#include "hyperframes/v1/membership.grpc.pb.h"

namespace hyperframes {

// What the adapter converts for. Everything outlives the server.
struct MembershipParts {
  NodeRegistry* registry = nullptr;
  HeartbeatLedger* ledger = nullptr;
  WorkerReports* workers = nullptr;
  LeaseBook* leases = nullptr;
  CoordinatorMetrics* metrics = nullptr;
  std::function<void()> wake;  // Something changed on a node.
  int64_t epoch = 0;
  absl::Duration heartbeat_interval;
  absl::Duration suspected_after;
  absl::Duration offline_after;
};

class MembershipService : public v1::Membership::Service {
 public:
  // Before the server starts. (gRPC's mixin below wants a default constructor.)
  void Bind(MembershipParts parts) { parts_ = std::move(parts); }

  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override;
  grpc::Status Report(grpc::ServerContext* context, const v1::ReportRequest* request,
                      v1::ReportResponse* response) override;

 private:
  absl::Status DoRegister(const v1::RegisterRequest& request, v1::RegisterResponse* response);
  absl::Status DoReport(const v1::ReportRequest& request, v1::ReportResponse* response);

  MembershipParts parts_;
};

using HeartbeatAsyncService = v1::Membership::WithAsyncMethod_Heartbeat<MembershipService>;

// Serves Heartbeat from `queue` on one thread that touches nothing but the ledger.
class HeartbeatLoop {
 public:
  HeartbeatLoop(HeartbeatAsyncService* service, std::unique_ptr<grpc::ServerCompletionQueue> queue,
                HeartbeatLedger* ledger, CoordinatorMetrics* metrics, int64_t epoch);
  // The server must have been shut down before.
  ~HeartbeatLoop();

  // After the server has started.
  void Start();

 private:
  class Call;
  void Serve();

  HeartbeatAsyncService* const service_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  HeartbeatLedger* const ledger_;
  CoordinatorMetrics* const metrics_;
  const int64_t epoch_;
  // Nothing may be asked of a queue that was shut down. Taken by this loop's thread and, once, by
  // the destructor.
  Mutex mutex_;
  bool stopping_ HF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_SERVICE_MEMBERSHIP_SERVICE_H_
