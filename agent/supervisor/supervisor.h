// Room: agent/supervisor. Starts workers through shims, finds them again after a restart of the
// agent, and tells what became of them. It knows processes and files; it must not know gRPC, leases
// or plans.
#ifndef HYPERFRAMES_AGENT_SUPERVISOR_SUPERVISOR_H_
#define HYPERFRAMES_AGENT_SUPERVISOR_SUPERVISOR_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "agent/supervisor/worker_files.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace hyperframes {

struct WorkerInfo {
  WorkerSpec spec;
  WorkerStatus status;
  bool adopted = false;   // Started by an earlier agent.
  bool attached = false;  // Started by others: see AttachedWorkers.
  absl::Duration age;     // Since it was started, or adopted.
};

struct LogPiece {
  std::string data;
  int64_t next_offset = 0;
  bool complete = false;  // The worker has ended and nothing follows.
};

struct SupervisorOptions {
  std::string run_directory;  // Workers live in "<run_directory>/workers".
  std::string shim_path;      // The hfshim binary.
  absl::Duration poll_interval = absl::Milliseconds(50);
  absl::Duration start_timeout = absl::Seconds(10);  // For a shim to write its first status.
  size_t most_workers = 256;                         // At once.
  // Directories of ended workers, with their logs: the newest so many, and none longer than so
  // long. One that the coordinator does not know of, or whose job goes on, is kept beyond both.
  size_t most_ended_kept = 256;
  absl::Duration ended_kept_for = absl::Hours(7 * 24);
  // Of one rank of a job that goes on: its newest ends. A job that is restarted again and again
  // must not fill the disk with its logs.
  size_t most_attempts_kept = 8;
  const Clock* clock = MonotonicClock();
};

// Thread-safe. Destroying it disturbs no worker: a later one adopts them.
class Supervisor {
 public:
  // `ended` is called once for each worker that ends in this supervisor's life, on its thread,
  // without locks. Adopts what it finds. Unavailable: the run directory cannot be used.
  // NotFound: no shim at shim_path.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Create(
      SupervisorOptions options, std::function<void(const WorkerInfo&)> ended);
  ~Supervisor();

  // Idempotent by worker id: a second call starts nothing. InvalidArgument: unreadable id, no
  // command. ResourceExhausted: too many workers. Unavailable: the shim cannot be started.
  absl::StatusOr<WorkerInfo> Start(const WorkerSpec& spec) HF_EXCLUDES(mutex_);
  // SIGTERM to its whole tree, SIGKILL after `grace`. Returns at once; idempotent. A `reason` that
  // is not empty becomes the message of its end; the first one counts. NotFound.
  absl::StatusOr<WorkerInfo> Stop(const std::string& worker_id, absl::Duration grace,
                                  const std::string& reason = "") HF_EXCLUDES(mutex_);
  // All that run, and those that ended and were not acknowledged.
  std::vector<WorkerInfo> Workers() const HF_EXCLUDES(mutex_);
  // The coordinator knows that these have ended.
  void Acknowledge(const std::vector<std::string>& worker_ids) HF_EXCLUDES(mutex_);
  // The coordinator's word on which jobs go on: the directories of their newest workers are kept.
  // Prunes the others; before the first call nothing is pruned, for nobody knows what is still
  // wanted.
  void KeepJobs(std::set<std::string> job_ids) HF_EXCLUDES(mutex_);
  // Workers that run here for this job.
  int Running(const std::string& job_id) const HF_EXCLUDES(mutex_);
  // NotFound: no such worker here. OutOfRange: an offset below zero.
  absl::StatusOr<LogPiece> ReadLog(const std::string& worker_id, int64_t offset,
                                   int64_t max_bytes) const HF_EXCLUDES(mutex_);

 private:
  struct Worker {
    WorkerInfo info;
    absl::Time since;
    bool told = false;           // The end is acknowledged.
    absl::Time ended_at;         // By the wall clock: it has to outlive a restart.
    pid_t spawned_shim = 0;      // Our child, to be reaped; 0: an earlier agent's.
    bool asked_to_stop = false;  // And the shim was not told yet.
    absl::Duration stop_grace;
  };

  Supervisor(SupervisorOptions options, std::function<void(const WorkerInfo&)> ended);
  void Adopt() HF_EXCLUDES(mutex_);
  // Does again what an agent that was killed half-way has not done; see supervisor.cc.
  void FinishStart(Worker* worker) HF_REQUIRES(mutex_);
  void Run();
  // Reads what shims wrote; returns those that ended now.
  std::vector<WorkerInfo> Poll() HF_EXCLUDES(mutex_);
  WorkerStatus PollOne(const std::string& worker_id, Worker* worker) HF_REQUIRES(mutex_);
  WorkerStatus EndWithoutShim(const std::string& worker_id, const Worker& worker);
  absl::StatusOr<pid_t> SpawnShim(const std::string& directory) const;
  static void SendStop(Worker* worker);
  static void Reap(Worker* worker);
  void Prune() HF_REQUIRES(mutex_);
  std::string DirectoryOf(const std::string& worker_id) const;
  WorkerInfo InfoOf(const Worker& worker) const;

  const SupervisorOptions options_;
  const std::function<void(const WorkerInfo&)> ended_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ HF_GUARDED_BY(mutex_) = false;
  absl::optional<std::set<std::string>> kept_jobs_ HF_GUARDED_BY(mutex_);
  std::map<std::string, Worker> workers_ HF_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SUPERVISOR_SUPERVISOR_H_
