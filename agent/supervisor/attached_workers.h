// Workers that others started (torchrun, a shell) and that attached themselves: they are watched
// and never launched. Who they are is the process itself, pid and start time: a pid alone is
// reused.
#ifndef HYPERFRAMES_AGENT_SUPERVISOR_ATTACHED_WORKERS_H_
#define HYPERFRAMES_AGENT_SUPERVISOR_ATTACHED_WORKERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/supervisor/supervisor.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace hyperframes {

struct AttachedWorkersOptions {
  std::string directory;  // One directory for each: the next agent goes on watching.
  // Short: of ranks that end one after the other the first is the cause.
  absl::Duration poll_interval = absl::Milliseconds(20);
  size_t most_workers = 256;
  const Clock* clock = MonotonicClock();
};

// Thread-safe. Destroying it disturbs no process.
class AttachedWorkers {
 public:
  // `ended` is called once for each that ends in this object's life, without locks. Goes on with
  // what an earlier agent watched. Unavailable: the directory cannot be used.
  static absl::StatusOr<std::unique_ptr<AttachedWorkers>> Create(
      AttachedWorkersOptions options, std::function<void(const WorkerInfo&)> ended);
  ~AttachedWorkers();

  // Watches `process` as `spec.worker_id`. Idempotent. InvalidArgument: an unreadable id;
  // FailedPrecondition: exactly that process does not run on this node; AlreadyExists: the id is
  // another process's; ResourceExhausted: too many.
  absl::StatusOr<WorkerInfo> Adopt(const WorkerSpec& spec, const ProcessIdentity& process)
      HF_EXCLUDES(mutex_);
  // It says itself that it ends; `reason` may be empty. Idempotent. NotFound.
  absl::StatusOr<WorkerInfo> Detach(const std::string& worker_id, int exit_code,
                                    const std::string& reason) HF_EXCLUDES(mutex_);
  // SIGTERM to the process, once, and never SIGKILL: who started it decides on that. NotFound.
  absl::StatusOr<WorkerInfo> Terminate(const std::string& worker_id) HF_EXCLUDES(mutex_);
  // All that run, and those that ended and were not acknowledged.
  std::vector<WorkerInfo> Workers() const HF_EXCLUDES(mutex_);
  // The coordinator knows that these have ended.
  void Acknowledge(const std::vector<std::string>& worker_ids) HF_EXCLUDES(mutex_);

 private:
  struct Worker {
    WorkerInfo info;
    absl::Time since;
    bool terminated = false;
  };

  AttachedWorkers(AttachedWorkersOptions options, std::function<void(const WorkerInfo&)> ended)
      : options_(std::move(options)), ended_(std::move(ended)) {}
  void Restore() HF_EXCLUDES(mutex_);
  void Run();
  void Poll() HF_EXCLUDES(mutex_);
  // Marks an end and writes it down.
  void End(Worker* worker, int exit_code, const std::string& message) HF_REQUIRES(mutex_);
  WorkerInfo InfoOf(const Worker& worker) const;
  std::string DirectoryOf(const std::string& worker_id) const;

  const AttachedWorkersOptions options_;
  const std::function<void(const WorkerInfo&)> ended_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ HF_GUARDED_BY(mutex_) = false;
  std::map<std::string, Worker> workers_ HF_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SUPERVISOR_ATTACHED_WORKERS_H_
