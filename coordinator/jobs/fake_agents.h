// Scripted agents in memory, for tests: one per address, with workers, ports and leases.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_FAKE_AGENTS_H_
#define HYPERFRAMES_COORDINATOR_JOBS_FAKE_AGENTS_H_

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "coordinator/jobs/agent_client.h"

namespace hyperframes {

class FakeAgents final : public AgentClient {
 public:
  struct Agent {
    std::map<std::string, v1::WorkerReport> workers;
    std::map<std::string, v1::StartWorkerRequest> starts;
    std::map<std::string, v1::LeaseReport> leases;
    std::map<std::string, int> ports;             // By job.
    std::map<std::string, double> graces;         // Of StopWorker, by worker.
    std::map<std::string, double> revoke_graces;  // By lease.
    int64_t seen_epoch = 0;
  };

  // The next calls of `method` ("StartWorker", ...) on any agent take these statuses in order; an
  // OK one lets its call through.
  void Script(const std::string& method, std::deque<absl::Status> statuses);
  Agent At(const std::string& address);
  // Ends a worker as its own exit or a signal would.
  void Exit(const std::string& address, const std::string& worker, int code, int term_signal = 0);
  // Committed leases have a living holder that does not return them.
  void HoldLeases();
  // Workers told to stop go on until Exit: they save first.
  void LetWorkersSave();
  void Forget(const std::string& address);
  // The list that the agent would report.
  std::vector<v1::WorkerReport> Workers(const std::string& address);
  std::vector<v1::LeaseReport> Leases(const std::string& address);
  int calls(const std::string& method);

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
  // Counts the call and takes its scripted status.
  absl::Status Next(const std::string& method) HF_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::string, Agent> agents_ HF_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<absl::Status>> script_ HF_GUARDED_BY(mutex_);
  std::map<std::string, int> calls_ HF_GUARDED_BY(mutex_);
  bool workers_save_ HF_GUARDED_BY(mutex_) = false;
  bool leases_held_ HF_GUARDED_BY(mutex_) = false;
  int last_port_ HF_GUARDED_BY(mutex_) = 29500;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_FAKE_AGENTS_H_
