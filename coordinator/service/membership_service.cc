#include "coordinator/service/membership_service.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/protocol_version.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr int kHeartbeatsAtOnce = 64;  // Calls that may be read before the first is answered.

}  // namespace

grpc::Status MembershipService::Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                                         v1::RegisterResponse* response) {
  return parts_.metrics->Rpc("Register", ToGrpc(DoRegister(*request, response)));
}

absl::Status MembershipService::DoRegister(const v1::RegisterRequest& request,
                                           v1::RegisterResponse* response) {
  HF_RETURN_IF_ERROR(CheckProtocol(request.version().major(), request.version().minor(),
                                   absl::StrCat("agent ", request.node().substr(0, 63))));
  HF_RETURN_IF_ERROR(parts_.registry->Register(request));
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> stop,
                      parts_.workers->Apply(request.node(), request.workers()));
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> release,
                      parts_.leases->ApplyReports(
                          request.node(), {request.leases().begin(), request.leases().end()}));
  response->mutable_version()->set_major(kProtocolMajor);
  response->mutable_version()->set_minor(kProtocolMinor);
  response->set_epoch(parts_.epoch);
  response->set_heartbeat_interval_s(absl::ToDoubleSeconds(parts_.heartbeat_interval));
  response->set_suspected_after_s(absl::ToDoubleSeconds(parts_.suspected_after));
  response->set_offline_after_s(absl::ToDoubleSeconds(parts_.offline_after));
  for (const std::string& id : stop) response->add_stop_workers(id);
  for (const std::string& id : parts_.workers->UnfinishedJobs(request.node())) {
    response->add_unfinished_jobs(id);
  }
  for (const std::string& id : release) response->add_release_leases(id);
  parts_.wake();
  return absl::OkStatus();
}

grpc::Status MembershipService::Report(grpc::ServerContext*, const v1::ReportRequest* request,
                                       v1::ReportResponse* response) {
  return parts_.metrics->Rpc("Report", ToGrpc(DoReport(*request, response)));
}

absl::Status MembershipService::DoReport(const v1::ReportRequest& request,
                                         v1::ReportResponse* response) {
  response->set_epoch(parts_.epoch);
  HF_ASSIGN_OR_RETURN(const bool known, parts_.registry->Report(request));
  response->set_known(known);
  if (!known) return absl::OkStatus();
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> stop,
                      parts_.workers->Apply(request.node(), request.workers()));
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> release,
                      parts_.leases->ApplyReports(
                          request.node(), {request.leases().begin(), request.leases().end()}));
  for (const std::string& id : stop) response->add_stop_workers(id);
  for (const std::string& id : parts_.workers->UnfinishedJobs(request.node())) {
    response->add_unfinished_jobs(id);
  }
  for (const std::string& id : release) response->add_release_leases(id);
  parts_.wake();
  return absl::OkStatus();
}

// One heartbeat from request to answer; deletes itself.
class HeartbeatLoop::Call {
 public:
  explicit Call(HeartbeatLoop* loop) : loop_(loop), responder_(&context_) {
    loop_->service_->RequestHeartbeat(&context_, &request_, &responder_, loop_->queue_.get(),
                                      loop_->queue_.get(), this);
  }

  void Proceed(bool ok) {
    MutexLock lock(&loop_->mutex_);
    if (answered_ || !ok || loop_->stopping_) {
      delete this;
      return;
    }
    new Call(loop_);  // Takes this one's place.
    answered_ = true;
    v1::HeartbeatResponse response;
    response.set_epoch(loop_->epoch_);
    const absl::StatusOr<bool> known =
        loop_->ledger_->Beat(request_.node(), request_.incarnation(), request_.sequence());
    response.set_known(known.ok() && *known);
    responder_.Finish(response, loop_->metrics_->Rpc("Heartbeat", ToGrpc(known.status())), this);
  }

 private:
  HeartbeatLoop* const loop_;
  grpc::ServerContext context_;
  v1::HeartbeatRequest request_;
  grpc::ServerAsyncResponseWriter<v1::HeartbeatResponse> responder_;
  bool answered_ = false;
};

HeartbeatLoop::HeartbeatLoop(HeartbeatAsyncService* service,
                             std::unique_ptr<grpc::ServerCompletionQueue> queue,
                             HeartbeatLedger* ledger, CoordinatorMetrics* metrics, int64_t epoch)
    : service_(service),
      queue_(std::move(queue)),
      ledger_(ledger),
      metrics_(metrics),
      epoch_(epoch) {}

HeartbeatLoop::~HeartbeatLoop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    queue_->Shutdown();
  }
  if (thread_.joinable()) {
    thread_.join();
  } else {
    void* tag;
    bool ok;
    while (queue_->Next(&tag, &ok)) {
    }
  }
}

void HeartbeatLoop::Start() {
  for (int i = 0; i < kHeartbeatsAtOnce; ++i) new Call(this);
  thread_ = std::thread([this] { Serve(); });
}

void HeartbeatLoop::Serve() {
  void* tag;
  bool ok;
  while (queue_->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
}

}  // namespace hyperframes
