// The Agent service of proto/hyperframes/v1/agent.proto: fences epochs, converts, and calls Node.
#ifndef HYPERFRAMES_AGENT_SERVICE_AGENT_SERVICE_H_
#define HYPERFRAMES_AGENT_SERVICE_AGENT_SERVICE_H_

#include <functional>
#include <string>

#include "agent/service/epoch_fence.h"
#include "agent/service/node.h"
#include "agent/service/worker_environment.h"
#include "hyperframes/v1/agent.grpc.pb.h"

namespace hyperframes {

// Thread-safe. The proto's comments are the contract.
class AgentService final : public v1::Agent::Service {
 public:
  // `changed` is called after whatever the coordinator should hear about soon.
  AgentService(Node* node, EpochFence* fence, std::function<void()> changed)
      : node_(node), fence_(fence), changed_(std::move(changed)) {}

  grpc::Status StartWorker(grpc::ServerContext*, const v1::StartWorkerRequest* request,
                           v1::StartWorkerResponse* response) override;
  grpc::Status StopWorker(grpc::ServerContext*, const v1::StopWorkerRequest* request,
                          v1::StopWorkerResponse* response) override;
  grpc::Status AdoptWorker(grpc::ServerContext*, const v1::AdoptWorkerRequest* request,
                           v1::AdoptWorkerResponse* response) override;
  grpc::Status DetachWorker(grpc::ServerContext*, const v1::DetachWorkerRequest* request,
                            v1::DetachWorkerResponse* response) override;
  grpc::Status ReservePort(grpc::ServerContext*, const v1::ReservePortRequest* request,
                           v1::ReservePortResponse* response) override;
  grpc::Status ReadWorkerLog(grpc::ServerContext*, const v1::ReadWorkerLogRequest* request,
                             v1::ReadLogResponse* response) override;
  grpc::Status PrepareLease(grpc::ServerContext*, const v1::PrepareLeaseRequest* request,
                            v1::LeaseResponse* response) override;
  grpc::Status CommitLease(grpc::ServerContext*, const v1::LeaseRequest* request,
                           v1::LeaseResponse* response) override;
  grpc::Status RevokeLease(grpc::ServerContext*, const v1::RevokeLeaseRequest* request,
                           v1::LeaseResponse* response) override;
  grpc::Status ReleaseLease(grpc::ServerContext*, const v1::LeaseRequest* request,
                            v1::LeaseResponse* response) override;

 private:
  // FailedPrecondition: the GPU runs no workers; the sentence says why.
  absl::StatusOr<WorkerSurroundings> Surroundings(const std::string& gpu_uuid,
                                                  const std::vector<std::string>& visible) const;
  absl::Status NotHere(const std::string& uuid) const;
  absl::Status Adopt(const v1::AdoptWorkerRequest& request, v1::AdoptWorkerResponse* response);
  absl::Status Start(const v1::StartWorkerRequest& request, v1::WorkerReport* report);

  Node* const node_;
  EpochFence* const fence_;
  const std::function<void()> changed_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_AGENT_SERVICE_H_
