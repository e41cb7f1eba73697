// AgentClient over gRPC: one channel per agent, five seconds a call.
#ifndef HYPERFRAMES_COORDINATOR_SERVICE_GRPC_AGENT_CLIENT_H_
#define HYPERFRAMES_COORDINATOR_SERVICE_GRPC_AGENT_CLIENT_H_

#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "coordinator/jobs/agent_client.h"
#include "hyperframes/v1/agent.grpc.pb.h"

namespace hyperframes {

class GrpcAgentClient final : public AgentClient {
 public:
  explicit GrpcAgentClient(absl::Duration deadline = absl::Seconds(5)) : deadline_(deadline) {}

  absl::StatusOr<v1::WorkerReport> StartWorker(const std::string& address,
                                               const v1::StartWorkerRequest& request) override;
  absl::StatusOr<v1::WorkerReport> StopWorker(const std::string& address,
                                              const v1::StopWorkerRequest& request) override;
  absl::StatusOr<v1::AdoptWorkerResponse> AdoptWorker(
      const std::string& address, const v1::AdoptWorkerRequest& request) override;
  absl::StatusOr<v1::WorkerReport> DetachWorker(const std::string& address,
                                                const v1::DetachWorkerRequest& request) override;
  absl::StatusOr<v1::ReservePortResponse> ReservePort(
      const std::string& address, const v1::ReservePortRequest& request) override;
  absl::StatusOr<v1::LeaseResponse> PrepareLease(const std::string& address,
                                                 const v1::PrepareLeaseRequest& request) override;
  absl::StatusOr<v1::LeaseReport> CommitLease(const std::string& address,
                                              const v1::LeaseRequest& request) override;
  absl::StatusOr<v1::LeaseReport> ReleaseLease(const std::string& address,
                                               const v1::LeaseRequest& request) override;
  absl::StatusOr<v1::LeaseReport> RevokeLease(const std::string& address,
                                              const v1::RevokeLeaseRequest& request) override;
  absl::StatusOr<v1::ReadLogResponse> ReadWorkerLog(
      const std::string& address, const v1::ReadWorkerLogRequest& request) override;

 private:
  std::shared_ptr<v1::Agent::Stub> StubFor(const std::string& address);
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(const std::string& address, const Request& request,
                                grpc::Status (v1::Agent::Stub::*method)(grpc::ClientContext*,
                                                                        const Request&, Response*),
                                absl::Duration longer = absl::ZeroDuration());

  const absl::Duration deadline_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<v1::Agent::Stub>> stubs_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_SERVICE_GRPC_AGENT_CLIENT_H_
