// What the coordinator asks of agents, without saying how the question travels.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_AGENT_CLIENT_H_
#define HYPERFRAMES_COORDINATOR_JOBS_AGENT_CLIENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "hyperframes/v1/agent.pb.h"

namespace hyperframes {

// `address` is the agent's host:port. Every call has a deadline and is idempotent by the id inside
// the request. Unavailable and DeadlineExceeded: the call may or may not have happened, ask again.
// Aborted: the agent has seen a newer epoch. Other statuses are the agent's own (agent.proto).
// Thread-safe.
class AgentClient {
 public:
  virtual ~AgentClient() = default;
  virtual absl::StatusOr<v1::WorkerReport> StartWorker(const std::string& address,
                                                       const v1::StartWorkerRequest& request) = 0;
  // NotFound: the agent has no such worker.
  virtual absl::StatusOr<v1::WorkerReport> StopWorker(const std::string& address,
                                                      const v1::StopWorkerRequest& request) = 0;
  // FailedPrecondition: the process does not run on the agent's node.
  virtual absl::StatusOr<v1::AdoptWorkerResponse> AdoptWorker(
      const std::string& address, const v1::AdoptWorkerRequest& request) = 0;
  // NotFound: the agent has no such attached worker.
  virtual absl::StatusOr<v1::WorkerReport> DetachWorker(const std::string& address,
                                                        const v1::DetachWorkerRequest& request) = 0;
  virtual absl::StatusOr<v1::ReservePortResponse> ReservePort(
      const std::string& address, const v1::ReservePortRequest& request) = 0;
  virtual absl::StatusOr<v1::LeaseResponse> PrepareLease(
      const std::string& address, const v1::PrepareLeaseRequest& request) = 0;
  virtual absl::StatusOr<v1::LeaseReport> CommitLease(const std::string& address,
                                                      const v1::LeaseRequest& request) = 0;
  virtual absl::StatusOr<v1::LeaseReport> ReleaseLease(const std::string& address,
                                                       const v1::LeaseRequest& request) = 0;
  virtual absl::StatusOr<v1::LeaseReport> RevokeLease(const std::string& address,
                                                      const v1::RevokeLeaseRequest& request) = 0;
  virtual absl::StatusOr<v1::ReadLogResponse> ReadWorkerLog(
      const std::string& address, const v1::ReadWorkerLogRequest& request) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_AGENT_CLIENT_H_
