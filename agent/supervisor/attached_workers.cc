#include "agent/supervisor/attached_workers.h"

#include <glog/logging.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "agent/supervisor/record_file.h"
#include "agent/supervisor/shim.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

void RemoveRecord(const std::string& directory) {
  for (const char* name : {kSpecFile, kStatusFile}) {
    unlink((directory + "/" + name).c_str());
    unlink((directory + "/." + name + ".tmp").c_str());
  }
  rmdir(directory.c_str());
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttachedWorkers>> AttachedWorkers::Create(
    AttachedWorkersOptions options, std::function<void(const WorkerInfo&)> ended) {
  HF_RETURN_IF_ERROR(MakeDirectories(options.directory));
  std::unique_ptr<AttachedWorkers> workers(
      new AttachedWorkers(std::move(options), std::move(ended)));
  workers->Restore();
  workers->thread_ = std::thread([raw = workers.get()] { raw->Run(); });
  return workers;
}

AttachedWorkers::~AttachedWorkers() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::string AttachedWorkers::DirectoryOf(const std::string& worker_id) const {
  return options_.directory + "/" + worker_id;
}

void AttachedWorkers::Restore() {
  MutexLock lock(&mutex_);
  for (const std::string& name : ListDirectory(options_.directory)) {
    absl::StatusOr<WorkerSpec> spec = ReadSpec(DirectoryOf(name));
    absl::StatusOr<WorkerStatus> status = ReadStatus(DirectoryOf(name));
    if (!spec.ok() || !status.ok() || spec->worker_id != name) {
      // Half-written: its adoption was never answered, so whoever asked asks again.
      RemoveRecord(DirectoryOf(name));
      continue;
    }
    Worker& worker = workers_[name];
    worker.info.spec = std::move(*spec);
    worker.info.status = std::move(*status);
    worker.info.attached = true;
    worker.info.adopted = true;
    worker.since = options_.clock->Now();
  }
}

absl::StatusOr<WorkerInfo> AttachedWorkers::Adopt(const WorkerSpec& spec,
                                                  const ProcessIdentity& process) {
  if (!IsWorkerId(spec.worker_id)) {
    return absl::InvalidArgumentError("worker_id '" + spec.worker_id.substr(0, 64) +
                                      "' is not 1 to 127 letters, digits, '.', '_' or '-'");
  }
  if (!ProcessRuns(process)) {
    return absl::FailedPreconditionError(
        "process " + std::to_string(process.pid) +
        " does not run on this node, or not in its process namespace: set HYPERFRAMES_NODE to the "
        "node that it runs on, and share the host's pid namespace with a container");
  }
  MutexLock lock(&mutex_);
  const auto known = workers_.find(spec.worker_id);
  if (known != workers_.end()) {
    if (known->second.info.status.worker == process) return InfoOf(known->second);
    return absl::AlreadyExistsError("worker " + spec.worker_id + " is process " +
                                    std::to_string(known->second.info.status.worker.pid));
  }
  if (workers_.size() >= options_.most_workers) {
    return absl::ResourceExhaustedError("this node watches " + std::to_string(workers_.size()) +
                                        " attached workers already");
  }
  WorkerStatus status;
  status.state = WorkerState::kRunning;
  status.worker = process;
  status.shim.boot_id = BootId();  // Of the clock that `ended` is told by; there is no shim.
  HF_RETURN_IF_ERROR(MakeDirectories(DirectoryOf(spec.worker_id)));
  HF_RETURN_IF_ERROR(WriteSpec(DirectoryOf(spec.worker_id), spec));
  HF_RETURN_IF_ERROR(WriteStatus(DirectoryOf(spec.worker_id), status));
  Worker& worker = workers_[spec.worker_id];
  worker.info.spec = spec;
  worker.info.status = status;
  worker.info.attached = true;
  worker.since = options_.clock->Now();
  LOG(INFO) << "process " << process.pid << " has attached as worker " << spec.worker_id;
  return InfoOf(worker);
}

void AttachedWorkers::End(Worker* worker, int exit_code, const std::string& message) {
  WorkerStatus& status = worker->info.status;
  status.state = WorkerState::kExited;
  status.exit_code = exit_code;
  status.message = message;
  status.ended = MonotonicClock()->Now();
  const absl::Status written = WriteStatus(DirectoryOf(worker->info.spec.worker_id), status);
  if (!written.ok()) LOG(WARNING) << written;
}

absl::StatusOr<WorkerInfo> AttachedWorkers::Detach(const std::string& worker_id, int exit_code,
                                                   const std::string& reason) {
  WorkerInfo info;
  {
    MutexLock lock(&mutex_);
    const auto found = workers_.find(worker_id);
    if (found == workers_.end()) {
      return absl::NotFoundError("no attached worker '" + worker_id.substr(0, 64) + "'");
    }
    if (found->second.info.status.state == WorkerState::kExited) return InfoOf(found->second);
    End(&found->second, exit_code, reason);
    info = InfoOf(found->second);
  }
  ended_(info);
  return info;
}

absl::StatusOr<WorkerInfo> AttachedWorkers::Terminate(const std::string& worker_id) {
  MutexLock lock(&mutex_);
  const auto found = workers_.find(worker_id);
  if (found == workers_.end()) {
    return absl::NotFoundError("no attached worker '" + worker_id.substr(0, 64) + "'");
  }
  Worker& worker = found->second;
  if (!worker.terminated && worker.info.status.state != WorkerState::kExited) {
    worker.terminated = SignalProcess(worker.info.status.worker, SIGTERM);
  }
  return InfoOf(worker);
}

std::vector<WorkerInfo> AttachedWorkers::Workers() const {
  MutexLock lock(&mutex_);
  std::vector<WorkerInfo> list;
  for (const auto& [worker_id, worker] : workers_) list.push_back(InfoOf(worker));
  return list;
}

void AttachedWorkers::Acknowledge(const std::vector<std::string>& worker_ids) {
  MutexLock lock(&mutex_);
  for (const std::string& worker_id : worker_ids) {
    const auto found = workers_.find(worker_id);
    if (found == workers_.end() || found->second.info.status.state != WorkerState::kExited) {
      continue;
    }
    RemoveRecord(DirectoryOf(worker_id));
    workers_.erase(found);
  }
}

void AttachedWorkers::Run() {
  while (true) {
    Poll();
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, options_.poll_interval,
                     [this]() HF_NO_THREAD_SAFETY_ANALYSIS { return stopping_; });
    if (stopping_) return;
  }
}

void AttachedWorkers::Poll() {
  std::vector<WorkerInfo> ended;
  {
    MutexLock lock(&mutex_);
    for (auto& [worker_id, worker] : workers_) {
      const WorkerStatus& status = worker.info.status;
      if (status.state == WorkerState::kExited || ProcessRuns(status.worker)) continue;
      End(&worker, /*exit_code=*/-1,
          "process " + std::to_string(status.worker.pid) + " ended without detaching");
      ended.push_back(InfoOf(worker));
    }
  }
  for (const WorkerInfo& info : ended) ended_(info);
}

WorkerInfo AttachedWorkers::InfoOf(const Worker& worker) const {
  WorkerInfo info = worker.info;
  info.age = options_.clock->Now() - worker.since;
  return info;
}

}  // namespace hyperframes
