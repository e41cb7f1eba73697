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
    std::map<std::string, int> ports;  // By job.
    int64_t seen_epoch = 0;
  };

  // The next calls of `method` ("StartWorker", ...) on any agent take these statuses in order; an
  // OK one lets its call through.
  void Script(const std::string& method, std::deque<absl::Status> statuses) {
    MutexLock lock(&mutex_);
    script_[method] = std::move(statuses);
  }
  Agent At(const std::string& address) {
    MutexLock lock(&mutex_);
    return agents_[address];
  }
  // Ends a worker as its own exit or a signal would.
  void Exit(const std::string& address, const std::string& worker, int code, int term_signal = 0) {
    MutexLock lock(&mutex_);
    v1::WorkerReport& report = agents_[address].workers[worker];
    report.set_state(v1::WORKER_STATE_EXITED);
    report.set_exit_code(code);
    report.set_term_signal(term_signal);
  }
  void Forget(const std::string& address) {
    MutexLock lock(&mutex_);
    agents_[address] = Agent();
  }
  // The list that the agent would report.
  std::vector<v1::WorkerReport> Workers(const std::string& address) {
    MutexLock lock(&mutex_);
    std::vector<v1::WorkerReport> list;
    for (const auto& named : agents_[address].workers) list.push_back(named.second);
    return list;
  }
  std::vector<v1::LeaseReport> Leases(const std::string& address) {
    MutexLock lock(&mutex_);
    std::vector<v1::LeaseReport> list;
    for (const auto& named : agents_[address].leases) list.push_back(named.second);
    return list;
  }
  int calls(const std::string& method) {
    MutexLock lock(&mutex_);
    return calls_[method];
  }

  absl::StatusOr<v1::WorkerReport> StartWorker(const std::string& address,
                                               const v1::StartWorkerRequest& request) override {
    MutexLock lock(&mutex_);
    const absl::Status scripted = Next("StartWorker");
    if (!scripted.ok()) return scripted;
    Agent& agent = agents_[address];
    agent.seen_epoch = request.epoch();
    agent.starts[request.worker_id()] = request;
    v1::WorkerReport& report = agent.workers[request.worker_id()];
    if (report.worker_id().empty()) {
      report.set_worker_id(request.worker_id());
      report.set_job_id(request.job_id());
      report.set_rank(request.rank());
      report.set_pid(100 + request.rank());
      report.set_state(v1::WORKER_STATE_RUNNING);
    }
    return report;
  }
  absl::StatusOr<v1::WorkerReport> StopWorker(const std::string& address,
                                              const v1::StopWorkerRequest& request) override {
    MutexLock lock(&mutex_);
    const absl::Status scripted = Next("StopWorker");
    if (!scripted.ok()) return scripted;
    const auto found = agents_[address].workers.find(request.worker_id());
    if (found == agents_[address].workers.end()) return absl::NotFoundError("no such worker");
    if (found->second.state() != v1::WORKER_STATE_EXITED) {
      found->second.set_state(v1::WORKER_STATE_EXITED);
      found->second.set_term_signal(15);
    }
    return found->second;
  }
  absl::StatusOr<v1::ReservePortResponse> ReservePort(
      const std::string& address, const v1::ReservePortRequest& request) override {
    MutexLock lock(&mutex_);
    const absl::Status scripted = Next("ReservePort");
    if (!scripted.ok()) return scripted;
    int& port = agents_[address].ports[request.job_id()];
    if (port == 0) port = ++last_port_;
    v1::ReservePortResponse response;
    response.set_host("127.0.0.1");
    response.set_port(port);
    return response;
  }
  absl::StatusOr<v1::LeaseReport> PrepareLease(const std::string& address,
                                               const v1::PrepareLeaseRequest& request) override {
    MutexLock lock(&mutex_);
    const absl::Status scripted = Next("PrepareLease");
    if (!scripted.ok()) return scripted;
    v1::LeaseReport& lease = agents_[address].leases[request.lease_id()];
    lease.set_lease_id(request.lease_id());
    lease.set_job_id(request.job_id());
    lease.set_rank(request.rank());
    lease.set_device(request.device());
    lease.set_tier(request.tier());
    lease.set_bytes(request.bytes());
    lease.set_state(v1::LEASE_STATE_PREPARED);
    return lease;
  }
  absl::StatusOr<v1::LeaseReport> CommitLease(const std::string& address,
                                              const v1::LeaseRequest& request) override {
    MutexLock lock(&mutex_);
    const absl::Status scripted = Next("CommitLease");
    if (!scripted.ok()) return scripted;
    const auto found = agents_[address].leases.find(request.lease_id());
    if (found == agents_[address].leases.end()) return absl::NotFoundError("no such lease");
    found->second.set_state(v1::LEASE_STATE_COMMITTED);
    return found->second;
  }
  absl::StatusOr<v1::LeaseReport> ReleaseLease(const std::string& address,
                                               const v1::LeaseRequest& request) override {
    MutexLock lock(&mutex_);
    const absl::Status scripted = Next("ReleaseLease");
    if (!scripted.ok()) return scripted;
    agents_[address].leases.erase(request.lease_id());
    v1::LeaseReport report;
    report.set_lease_id(request.lease_id());
    report.set_state(v1::LEASE_STATE_RELEASED);
    report.set_release_reason(request.reason());
    return report;
  }
  absl::StatusOr<v1::ReadLogResponse> ReadWorkerLog(
      const std::string& address, const v1::ReadWorkerLogRequest& request) override {
    MutexLock lock(&mutex_);
    const absl::Status scripted = Next("ReadWorkerLog");
    if (!scripted.ok()) return scripted;
    v1::ReadLogResponse response;
    response.set_data(address + " " + request.worker_id());
    return response;
  }

 private:
  absl::Status Next(const std::string& method) HF_REQUIRES(mutex_) {
    ++calls_[method];
    std::deque<absl::Status>& script = script_[method];
    if (script.empty()) return absl::OkStatus();
    const absl::Status status = script.front();
    script.pop_front();
    return status;
  }

  Mutex mutex_;
  std::map<std::string, Agent> agents_ HF_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<absl::Status>> script_ HF_GUARDED_BY(mutex_);
  std::map<std::string, int> calls_ HF_GUARDED_BY(mutex_);
  int last_port_ HF_GUARDED_BY(mutex_) = 29500;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_FAKE_AGENTS_H_
