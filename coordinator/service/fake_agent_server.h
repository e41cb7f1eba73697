// Scripted agents behind real gRPC, for tests that run a whole coordinator.
#ifndef HYPERFRAMES_COORDINATOR_SERVICE_FAKE_AGENT_SERVER_H_
#define HYPERFRAMES_COORDINATOR_SERVICE_FAKE_AGENT_SERVER_H_

#include <grpcpp/server_builder.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/protocol_version.h"
#include "coordinator/jobs/fake_agents.h"
#include "hyperframes/v1/agent.grpc.pb.h"

namespace hyperframes {

class FakeAgentServer final : public v1::Agent::Service {
 public:
  // Listens on a free port for the agent `name` of `agents`, which must outlive this.
  FakeAgentServer(FakeAgents* agents, std::string name) : agents_(agents), name_(std::move(name)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  // How the node registers, with two GPUs, and what it runs and lends now.
  v1::RegisterRequest Description() {
    v1::RegisterRequest request;
    request.mutable_version()->set_major(kProtocolMajor);
    request.set_node(name_);
    request.set_incarnation(7);
    request.set_agent_address(absl::StrCat("127.0.0.1:", port_));
    request.set_worker_socket("/run/a.sock");
    request.set_host_lendable_bytes(1 << 20);
    for (int i = 0; i < 2; ++i) {
      v1::GpuInfo* gpu = request.add_gpus();
      gpu->set_uuid(absl::StrCat("SIM-", name_, "-", i));
      gpu->set_index(i);
      gpu->set_total_bytes(1 << 20);
    }
    for (const auto& worker : agents_->Workers(name_)) *request.add_workers() = worker;
    for (const auto& lease : agents_->Leases(name_)) *request.add_leases() = lease;
    return request;
  }
  // What the node reports of its workers and leases now.
  v1::ReportRequest News() {
    const v1::RegisterRequest all = Description();
    v1::ReportRequest request;
    request.set_node(name_);
    request.set_incarnation(7);
    *request.mutable_gpus() = all.gpus();
    *request.mutable_workers() = all.workers();
    *request.mutable_leases() = all.leases();
    return request;
  }
  std::string TokenOf(const std::string& worker) {
    return agents_->At(name_).starts[worker].job_token();
  }

  grpc::Status StartWorker(grpc::ServerContext*, const v1::StartWorkerRequest* request,
                           v1::StartWorkerResponse* response) override {
    return Give(agents_->StartWorker(name_, *request), response->mutable_worker());
  }
  grpc::Status StopWorker(grpc::ServerContext*, const v1::StopWorkerRequest* request,
                          v1::StopWorkerResponse* response) override {
    return Give(agents_->StopWorker(name_, *request), response->mutable_worker());
  }
  grpc::Status ReservePort(grpc::ServerContext*, const v1::ReservePortRequest* request,
                           v1::ReservePortResponse* response) override {
    return Give(agents_->ReservePort(name_, *request), response);
  }
  grpc::Status ReadWorkerLog(grpc::ServerContext*, const v1::ReadWorkerLogRequest* request,
                             v1::ReadLogResponse* response) override {
    return Give(agents_->ReadWorkerLog(name_, *request), response);
  }
  grpc::Status PrepareLease(grpc::ServerContext*, const v1::PrepareLeaseRequest* request,
                            v1::LeaseResponse* response) override {
    return Give(agents_->PrepareLease(name_, *request), response);
  }
  grpc::Status CommitLease(grpc::ServerContext*, const v1::LeaseRequest* request,
                           v1::LeaseResponse* response) override {
    return Give(agents_->CommitLease(name_, *request), response->mutable_lease());
  }
  grpc::Status RevokeLease(grpc::ServerContext*, const v1::RevokeLeaseRequest* request,
                           v1::LeaseResponse* response) override {
    return Give(agents_->RevokeLease(name_, *request), response->mutable_lease());
  }
  grpc::Status ReleaseLease(grpc::ServerContext*, const v1::LeaseRequest* request,
                            v1::LeaseResponse* response) override {
    return Give(agents_->ReleaseLease(name_, *request), response->mutable_lease());
  }

 private:
  template <typename Message>
  grpc::Status Give(const absl::StatusOr<Message>& result, Message* out) {
    if (result.ok()) *out = *result;
    return ToGrpc(result.status());
  }

  FakeAgents* const agents_;
  const std::string name_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_SERVICE_FAKE_AGENT_SERVER_H_
