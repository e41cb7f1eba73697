#include "coordinator/jobs/fake_agents.h"

#include <utility>

namespace hyperframes {

void FakeAgents::Script(const std::string& method, std::deque<absl::Status> statuses) {
  MutexLock lock(&mutex_);
  script_[method] = std::move(statuses);
}

FakeAgents::Agent FakeAgents::At(const std::string& address) {
  MutexLock lock(&mutex_);
  return agents_[address];
}

void FakeAgents::Exit(const std::string& address, const std::string& worker, int code,
                      int term_signal) {
  MutexLock lock(&mutex_);
  v1::WorkerReport& report = agents_[address].workers[worker];
  report.set_state(v1::WORKER_STATE_EXITED);
  report.set_exit_code(code);
  report.set_term_signal(term_signal);
}

void FakeAgents::LetWorkersSave() {
  MutexLock lock(&mutex_);
  workers_save_ = true;
}

void FakeAgents::Forget(const std::string& address) {
  MutexLock lock(&mutex_);
  agents_[address] = Agent();
}

std::vector<v1::WorkerReport> FakeAgents::Workers(const std::string& address) {
  MutexLock lock(&mutex_);
  std::vector<v1::WorkerReport> list;
  for (const auto& named : agents_[address].workers) list.push_back(named.second);
  return list;
}

std::vector<v1::LeaseReport> FakeAgents::Leases(const std::string& address) {
  MutexLock lock(&mutex_);
  std::vector<v1::LeaseReport> list;
  for (const auto& named : agents_[address].leases) list.push_back(named.second);
  return list;
}

int FakeAgents::calls(const std::string& method) {
  MutexLock lock(&mutex_);
  return calls_[method];
}

absl::StatusOr<v1::WorkerReport> FakeAgents::StartWorker(const std::string& address,
                                                         const v1::StartWorkerRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("StartWorker");
  if (!scripted.ok()) return scripted;
  Agent& agent = agents_[address];
  agent.seen_epoch = request.epoch();
  agent.starts[request.worker_id()] = request;
  v1::WorkerReport& report = agent.workers[request.worker_id()];
  if (report.worker_id().empty()) {
    report.set_worker_id(request.worker_id());
    report.set_job_id(request.job_id());
    report.set_rank(request.rank());
    report.set_gpu(request.gpu());
    report.set_pid(100 + request.rank());
    report.set_state(v1::WORKER_STATE_RUNNING);
  }
  return report;
}

absl::StatusOr<v1::WorkerReport> FakeAgents::StopWorker(const std::string& address,
                                                        const v1::StopWorkerRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("StopWorker");
  if (!scripted.ok()) return scripted;
  const auto found = agents_[address].workers.find(request.worker_id());
  if (found == agents_[address].workers.end()) return absl::NotFoundError("no such worker");
  agents_[address].graces[request.worker_id()] = request.grace_s();
  if (workers_save_ && found->second.state() == v1::WORKER_STATE_RUNNING) {
    found->second.set_state(v1::WORKER_STATE_STOPPING);
  } else if (!workers_save_ && found->second.state() != v1::WORKER_STATE_EXITED) {
    found->second.set_state(v1::WORKER_STATE_EXITED);
    found->second.set_term_signal(15);
  }
  return found->second;
}

absl::StatusOr<v1::AdoptWorkerResponse> FakeAgents::AdoptWorker(
    const std::string& address, const v1::AdoptWorkerRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("AdoptWorker");
  if (!scripted.ok()) return scripted;
  v1::WorkerReport& report = agents_[address].workers[request.worker_id()];
  if (report.worker_id().empty()) {
    report.set_worker_id(request.worker_id());
    report.set_job_id(request.job_id());
    report.set_rank(request.rank());
    report.set_gpu(request.gpu());
    report.set_pid(request.process().pid());
    report.set_attached(true);
    report.set_state(v1::WORKER_STATE_RUNNING);
  }
  v1::AdoptWorkerResponse response;
  *response.mutable_worker() = report;
  (*response.mutable_environment())["HYPERFRAMES_JOB_TOKEN"] = request.job_token();
  return response;
}

absl::StatusOr<v1::WorkerReport> FakeAgents::DetachWorker(const std::string& address,
                                                          const v1::DetachWorkerRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("DetachWorker");
  if (!scripted.ok()) return scripted;
  const auto found = agents_[address].workers.find(request.worker_id());
  if (found == agents_[address].workers.end()) return absl::NotFoundError("no such worker");
  found->second.set_state(v1::WORKER_STATE_EXITED);
  found->second.set_exit_code(request.exit_code());
  return found->second;
}

absl::StatusOr<v1::ReservePortResponse> FakeAgents::ReservePort(
    const std::string& address, const v1::ReservePortRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("ReservePort");
  if (!scripted.ok()) return scripted;
  int& port = agents_[address].ports[request.job_id()];
  if (port == 0) port = ++last_port_;
  v1::ReservePortResponse response;
  response.set_host("127.0.0.1");
  response.set_port(port);
  return response;
}

absl::StatusOr<v1::LeaseResponse> FakeAgents::PrepareLease(const std::string& address,
                                                           const v1::PrepareLeaseRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("PrepareLease");
  if (!scripted.ok()) return scripted;
  v1::LeaseReport& lease = agents_[address].leases[request.lease_id()];
  lease.set_lease_id(request.lease_id());
  lease.set_job_id(request.job_id());
  lease.set_rank(request.rank());
  lease.set_device(request.device());
  lease.set_tier(request.tier());
  lease.set_bytes(request.bytes());
  lease.set_state(v1::LEASE_STATE_PREPARED);
  v1::LeaseResponse response;
  *response.mutable_lease() = lease;
  if (!request.holder_node().empty()) response.set_transfer_address("transfer:" + address);
  return response;
}

absl::StatusOr<v1::LeaseReport> FakeAgents::CommitLease(const std::string& address,
                                                        const v1::LeaseRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("CommitLease");
  if (!scripted.ok()) return scripted;
  const auto found = agents_[address].leases.find(request.lease_id());
  if (found == agents_[address].leases.end()) return absl::NotFoundError("no such lease");
  found->second.set_state(v1::LEASE_STATE_COMMITTED);
  return found->second;
}

absl::StatusOr<v1::LeaseReport> FakeAgents::ReleaseLease(const std::string& address,
                                                         const v1::LeaseRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("ReleaseLease");
  if (!scripted.ok()) return scripted;
  agents_[address].leases.erase(request.lease_id());
  v1::LeaseReport report;
  report.set_lease_id(request.lease_id());
  report.set_state(v1::LEASE_STATE_RELEASED);
  report.set_release_reason(request.reason());
  return report;
}

void FakeAgents::HoldLeases() {
  MutexLock lock(&mutex_);
  leases_held_ = true;
}

absl::StatusOr<v1::LeaseReport> FakeAgents::RevokeLease(const std::string& address,
                                                        const v1::RevokeLeaseRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("RevokeLease");
  if (!scripted.ok()) return scripted;
  std::map<std::string, v1::LeaseReport>& leases = agents_[address].leases;
  const auto found = leases.find(request.lease_id());
  if (found == leases.end()) return absl::NotFoundError("no such lease");
  v1::LeaseReport& lease = found->second;
  if (lease.state() == v1::LEASE_STATE_PREPARED) {
    return absl::FailedPreconditionError("not committed");
  }
  agents_[address].revoke_graces[request.lease_id()] = request.grace_s();
  lease.set_state(leases_held_ ? v1::LEASE_STATE_REVOKING : v1::LEASE_STATE_RELEASED);
  const v1::LeaseReport answer = lease;
  if (!leases_held_) leases.erase(found);
  return answer;
}

absl::StatusOr<v1::ReadLogResponse> FakeAgents::ReadWorkerLog(
    const std::string& address, const v1::ReadWorkerLogRequest& request) {
  MutexLock lock(&mutex_);
  absl::Status scripted = Next("ReadWorkerLog");
  if (!scripted.ok()) return scripted;
  v1::ReadLogResponse response;
  response.set_data(address + " " + request.worker_id());
  return response;
}

absl::Status FakeAgents::Next(const std::string& method) {
  ++calls_[method];
  std::deque<absl::Status>& script = script_[method];
  if (script.empty()) return absl::OkStatus();
  absl::Status status = script.front();
  script.pop_front();
  return status;
}

}  // namespace hyperframes
