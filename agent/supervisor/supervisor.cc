#include "agent/supervisor/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "agent/supervisor/record_file.h"
#include "agent/supervisor/shim.h"
#include "common/spawn.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

constexpr int64_t kMostLogBytes = kMiB;
constexpr size_t kMostReason = 256;
constexpr absl::Duration kLongestGrace = absl::Hours(1);

// A shim holds its lock for as long as it lives; a file can lie, this cannot.
bool ShimLives(const std::string& directory) {
  UniqueFd file(open((directory + "/" + kLockFile).c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  // Asks without taking: a shim that starts in this moment must not find its lock taken by us.
  return file.valid() && fcntl(file.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// When its last status was written; now, when that cannot be told.
absl::Time EndedAt(const std::string& directory) {
  struct stat file = {};
  if (stat((directory + "/" + kStatusFile).c_str(), &file) != 0) return absl::Now();
  return absl::FromTimeT(file.st_mtime);
}

// The spec goes first: a directory without one is on its way out, and adoption finishes that.
void RemoveWorkerDirectory(const std::string& directory) {
  for (const char* name :
       {kSpecFile, kStatusFile, kLogFile, kLockFile, kReasonFile, kToldFile, "shim.log"}) {
    unlink((directory + "/" + name).c_str());
    unlink((directory + "/." + name + ".tmp").c_str());  // Of a writer that was killed.
  }
  // Fails when the worker left files of its own there: they are the user's, so they stay.
  rmdir(directory.c_str());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::Create(
    SupervisorOptions options, std::function<void(const WorkerInfo&)> ended) {
  if (access(options.shim_path.c_str(), X_OK) != 0) {
    return absl::NotFoundError("no shim at '" + options.shim_path + "' (" + strerror(errno) +
                               "): hfshim is installed beside hfagent");
  }
  HF_RETURN_IF_ERROR(MakeDirectories(options.run_directory + "/workers"));
  std::unique_ptr<Supervisor> supervisor(new Supervisor(std::move(options), std::move(ended)));
  supervisor->Adopt();
  supervisor->thread_ = std::thread([raw = supervisor.get()] { raw->Run(); });
  return supervisor;
}

Supervisor::Supervisor(SupervisorOptions options, std::function<void(const WorkerInfo&)> ended)
    : options_(std::move(options)), ended_(std::move(ended)) {}

Supervisor::~Supervisor() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::string Supervisor::DirectoryOf(const std::string& worker_id) const {
  return options_.run_directory + "/workers/" + worker_id;
}

WorkerInfo Supervisor::InfoOf(const Worker& worker) const {
  WorkerInfo info = worker.info;
  info.age = options_.clock->Now() - worker.since;
  return info;
}

// Where a kill of the agent can fall, what it leaves, and what the next agent does about it:
//
//   directory made, spec not yet written     no spec              undone: removed, as if never
//   asked spec written, shim not yet spawned       spec                 redone: a shim is started
//   shim spawned, its lock not yet taken     spec                 redone: of two shims one gets the
//                                                                 lock, and it finds no status
//   shim locked, status not yet written      spec, lock held      the shim goes on by itself
//   any later point of the worker's life     status, lock held    the shim goes on by itself
//   worker ended, `ended` not yet called     EXITED               redone: the first poll calls it
//   end reported, `told` not yet written     EXITED               redone: reported once more
//   stop promised, signal not yet sent       status, lock held    redone by who asked: it asks
//   again pruned, files not yet all gone           no spec              redone: removed
//
// And a kill of the shim: before its status, the spec alone, so a shim is started, now or by the
// next agent (EndWithoutShim when it failed by itself, which would repeat); after it, the worker is
// gone as well (PR_SET_PDEATHSIG) and EndWithoutShim says so. A worker runs at most once: a shim
// writes its first status before it forks, and none starts where there is a status.
void Supervisor::Adopt() {
  MutexLock lock(&mutex_);
  for (const std::string& name : ListDirectory(options_.run_directory + "/workers")) {
    const std::string directory = DirectoryOf(name);
    absl::StatusOr<WorkerSpec> spec = ReadSpec(directory);
    if (absl::IsNotFound(spec.status())) {
      RemoveWorkerDirectory(directory);
      continue;
    }
    if (!spec.ok() || spec->worker_id != name) {
      LOG(WARNING) << "worker directory " << directory << " is not adopted: "
                   << (spec.ok() ? "it describes another worker"
                                 : std::string(spec.status().message()));
      continue;
    }
    Worker& worker = workers_[name];
    worker.info.spec = std::move(*spec);
    worker.info.adopted = true;
    worker.since = options_.clock->Now();
    worker.told = access((directory + "/" + kToldFile).c_str(), F_OK) == 0;
    if (!worker.told) {
      FinishStart(&worker);
      continue;
    }
    // An end that was told is history; any other is found by the first poll, and reported.
    absl::StatusOr<WorkerStatus> status = ReadStatus(directory);
    if (status.ok()) worker.info.status = std::move(*status);
    worker.info.status.state = WorkerState::kExited;
    worker.ended_at = EndedAt(directory);
  }
}

void Supervisor::FinishStart(Worker* worker) {
  const std::string directory = DirectoryOf(worker->info.spec.worker_id);
  // In this order: a shim that takes the lock in between has written its status before it ends.
  if (ShimLives(directory)) return;
  if (!absl::IsNotFound(ReadStatus(directory).status())) return;
  LOG(INFO) << "worker " << worker->info.spec.worker_id
            << " was recorded and not yet started when the earlier agent ended: it is started now";
  absl::StatusOr<pid_t> shim = SpawnShim(directory);
  if (shim.ok()) {
    worker->spawned_shim = *shim;
  } else {
    LOG(WARNING) << shim.status();  // The poll reports it when nothing has come by start_timeout.
  }
}

absl::StatusOr<WorkerInfo> Supervisor::Start(const WorkerSpec& spec) {
  if (!IsWorkerId(spec.worker_id)) {
    return absl::InvalidArgumentError("worker_id '" + spec.worker_id.substr(0, 64) +
                                      "' is not 1 to 127 letters, digits, '.', '_' or '-'");
  }
  if (spec.command.empty() || spec.command[0].empty()) {
    return absl::InvalidArgumentError("command: worker " + spec.worker_id + " has none");
  }
  MutexLock lock(&mutex_);
  const auto existing = workers_.find(spec.worker_id);
  if (existing != workers_.end()) return InfoOf(existing->second);
  const auto running = std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) {
    return entry.second.info.status.state != WorkerState::kExited;
  });
  if (static_cast<size_t>(running) >= options_.most_workers) {
    return absl::ResourceExhaustedError("this node runs " + std::to_string(running) +
                                        " workers already");
  }
  Prune();
  const std::string directory = DirectoryOf(spec.worker_id);
  HF_RETURN_IF_ERROR(MakeDirectories(directory));
  const absl::Status recorded = WriteSpec(directory, spec);
  absl::StatusOr<pid_t> shim =
      recorded.ok() ? SpawnShim(directory) : absl::StatusOr<pid_t>(recorded);
  if (!shim.ok()) {
    RemoveWorkerDirectory(directory);
    return shim.status();
  }
  Worker& worker = workers_[spec.worker_id];
  worker.info.spec = spec;
  worker.spawned_shim = *shim;
  worker.since = options_.clock->Now();
  return InfoOf(worker);
}

// A session of its own, nothing of ours open, no signal blocked or ignored: whatever happens to
// this agent does not reach it.
absl::StatusOr<pid_t> Supervisor::SpawnShim(const std::string& directory) const {
  SpawnOptions spawn;
  spawn.arguments = {options_.shim_path, directory};
  spawn.error_file = directory + "/shim.log";
  spawn.group = SpawnGroup::kOwnSession;
  absl::StatusOr<pid_t> shim = Spawn(spawn);
  if (shim.ok()) return shim;
  return absl::UnavailableError(shim.status().message());
}

absl::StatusOr<WorkerInfo> Supervisor::Stop(const std::string& worker_id, absl::Duration grace,
                                            const std::string& reason) {
  MutexLock lock(&mutex_);
  const auto found = workers_.find(worker_id);
  if (found == workers_.end()) {
    return absl::NotFoundError("no worker '" + worker_id.substr(0, 64) + "' on this node");
  }
  Worker& worker = found->second;
  if (worker.info.status.state == WorkerState::kExited) return InfoOf(worker);
  const std::string reason_file = DirectoryOf(worker_id) + "/" + kReasonFile;
  if (!reason.empty() && access(reason_file.c_str(), F_OK) != 0) {
    // Before the signal: the end may be told by another agent than this one.
    WriteRecordFile(reason_file, reason.substr(0, kMostReason), /*durable=*/false).IgnoreError();
  }
  worker.asked_to_stop = true;
  worker.stop_grace = std::clamp(grace, absl::ZeroDuration(), kLongestGrace);
  SendStop(&worker);
  if (IsLegalMove(worker.info.status.state, WorkerState::kStopping)) {
    worker.info.status.state = WorkerState::kStopping;
  }
  return InfoOf(worker);
}

// A shim that was just spawned or adopted has not said who it is yet, and one that has not got so
// far would die of the signal instead of passing it on: then the poll that learns of it sends.
void Supervisor::SendStop(Worker* worker) {
  if (!worker->asked_to_stop || worker->info.status.shim.pid == 0) return;
  worker->asked_to_stop = false;
  SignalProcess(worker->info.status.shim, SIGTERM,
                static_cast<int>(absl::ToInt64Milliseconds(worker->stop_grace)));
}

std::vector<WorkerInfo> Supervisor::Workers() const {
  MutexLock lock(&mutex_);
  std::vector<WorkerInfo> workers;
  for (const auto& [worker_id, worker] : workers_) {
    if (!worker.told) workers.push_back(InfoOf(worker));
  }
  return workers;
}

void Supervisor::Acknowledge(const std::vector<std::string>& worker_ids) {
  MutexLock lock(&mutex_);
  for (const std::string& worker_id : worker_ids) {
    const auto found = workers_.find(worker_id);
    if (found == workers_.end() || found->second.told) continue;
    if (found->second.info.status.state != WorkerState::kExited) continue;
    found->second.told = true;
    // Should this fail, a restarted agent tells it once more.
    WriteRecordFile(DirectoryOf(worker_id) + "/" + kToldFile, "", /*durable=*/false).IgnoreError();
  }
}

int Supervisor::Running(const std::string& job_id) const {
  MutexLock lock(&mutex_);
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second.info.spec.job_id == job_id &&
           entry.second.info.status.state != WorkerState::kExited;
  }));
}

absl::StatusOr<LogPiece> Supervisor::ReadLog(const std::string& worker_id, int64_t offset,
                                             int64_t max_bytes) const {
  if (offset < 0) return absl::OutOfRangeError("offset: " + std::to_string(offset) + " is below 0");
  bool ended = false;
  {
    MutexLock lock(&mutex_);
    const auto found = workers_.find(worker_id);
    if (found == workers_.end()) {
      return absl::NotFoundError("no log of worker '" + worker_id.substr(0, 64) + "' on this node");
    }
    ended = found->second.info.status.state == WorkerState::kExited;
  }
  LogPiece piece;
  piece.next_offset = offset;
  const int64_t wanted = max_bytes <= 0 ? 64 * kKiB : std::min(max_bytes, kMostLogBytes);
  UniqueFd file(open((DirectoryOf(worker_id) + "/" + kLogFile).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.valid()) {
    piece.data.resize(wanted);
    const ssize_t count = pread(file.get(), &piece.data[0], wanted, offset);
    piece.data.resize(std::max<ssize_t>(count, 0));
    piece.next_offset += static_cast<int64_t>(piece.data.size());
    struct stat status;
    piece.complete =
        ended && fstat(file.get(), &status) == 0 && piece.next_offset >= status.st_size;
  } else {
    piece.complete = ended;
  }
  return piece;
}

void Supervisor::Run() {
  while (true) {
    for (const WorkerInfo& info : Poll()) {
      // First the consequences, then the news: whoever sees the end may start a successor, which
      // must not lose what this one held.
      ended_(info);
      MutexLock lock(&mutex_);
      Worker& worker = workers_.at(info.spec.worker_id);
      worker.info.status = info.status;
      worker.ended_at = EndedAt(DirectoryOf(info.spec.worker_id));
    }
    MutexLock lock(&mutex_);
    if (changed_.WaitFor(&mutex_, options_.poll_interval,
                         [this]() HF_NO_THREAD_SAFETY_ANALYSIS { return stopping_; }))
      return;
  }
}

std::vector<WorkerInfo> Supervisor::Poll() {
  MutexLock lock(&mutex_);
  std::vector<WorkerInfo> ended;
  for (auto& [worker_id, worker] : workers_) {
    Reap(&worker);
    if (worker.info.status.state == WorkerState::kExited) continue;
    const WorkerStatus status = PollOne(worker_id, &worker);
    if (status.state != WorkerState::kExited) {
      worker.info.status = status;
      SendStop(&worker);
      continue;
    }
    ended.push_back(InfoOf(worker));
    ended.back().status = status;
    const auto reason = ReadRecordFile(DirectoryOf(worker_id) + "/" + kReasonFile);
    if (reason.ok()) ended.back().status.message = *reason;
  }
  return ended;
}

// Also after the worker's end is known: a shim writes the last status while it still lives, and it
// would stay a zombie for as long as the agent runs.
void Supervisor::Reap(Worker* worker) {
  if (worker->spawned_shim != 0 &&
      waitpid(worker->spawned_shim, nullptr, WNOHANG) == worker->spawned_shim) {
    worker->spawned_shim = 0;
  }
}

WorkerStatus Supervisor::PollOne(const std::string& worker_id, Worker* worker) {
  const std::string directory = DirectoryOf(worker_id);
  // Life first, record second: the last thing that a shim does is to write the record.
  const bool shim_lives = ShimLives(directory);
  Reap(worker);
  const WorkerStatus& known = worker->info.status;
  absl::StatusOr<WorkerStatus> status = ReadStatus(directory);
  if (status.ok() && status->state == WorkerState::kExited) return *status;
  if (status.ok() && (shim_lives || known.shim.pid == 0)) {
    // Asked to stop, and the shim has not come to it yet.
    if (known.state > status->state) status->state = known.state;
    return *status;
  }
  const bool starting = !status.ok() &&
                        options_.clock->Now() - worker->since < options_.start_timeout &&
                        (worker->spawned_shim != 0 || worker->info.adopted);
  if (shim_lives || starting) return known;
  return EndWithoutShim(worker_id, *worker);
}

// A shim that was killed takes the worker itself along; what it had started has no guardian left.
// SIGKILL is told only where one was sent: a worker that never ran, or that a reboot ended, has
// exit code -1 and the cause in words.
WorkerStatus Supervisor::EndWithoutShim(const std::string& worker_id, const Worker& worker) {
  WorkerStatus status = worker.info.status;
  for (const ProcessIdentity& process : Descendants(status.worker.pid)) {
    if (ProcessRuns(status.worker)) SignalProcess(process, SIGKILL);
  }
  SignalProcess(status.worker, SIGKILL);
  status.state = WorkerState::kExited;
  if (status.shim.pid == 0) {
    status.exit_code = -1;
    status.message = "the worker was not started: see shim.log in " + DirectoryOf(worker_id);
  } else if (status.shim.boot_id != BootId()) {
    status.exit_code = -1;
    status.message = "the node restarted";
  } else {
    status.term_signal = SIGKILL;
    status.ended = MonotonicClock()->Now();
    status.message = "its shim was ended from outside";
  }
  WriteStatus(DirectoryOf(worker_id), status).IgnoreError();
  return status;
}

void Supervisor::KeepJobs(std::set<std::string> job_ids) {
  MutexLock lock(&mutex_);
  kept_jobs_ = std::move(job_ids);
  Prune();
}

// The oldest ends go first. Holds the lock over some unlinks; a call takes away few.
void Supervisor::Prune() {
  if (!kept_jobs_.has_value()) return;
  std::set<std::string> going_on = *kept_jobs_;
  for (const auto& [worker_id, worker] : workers_) {
    // Started since the coordinator spoke.
    if (worker.info.status.state != WorkerState::kExited) going_on.insert(worker.info.spec.job_id);
  }
  std::vector<std::pair<absl::Time, std::string>> ended;
  std::map<std::pair<std::string, int>, std::vector<std::pair<absl::Time, std::string>>> attempts;
  for (const auto& [worker_id, worker] : workers_) {
    const WorkerSpec& spec = worker.info.spec;
    if (!worker.told) continue;
    auto& list = going_on.count(spec.job_id) == 0 ? ended : attempts[{spec.job_id, spec.rank}];
    list.emplace_back(worker.ended_at, worker_id);
  }
  for (auto& [rank, list] : attempts) {
    std::sort(list.begin(), list.end());
    for (size_t i = 0; i + options_.most_attempts_kept < list.size(); ++i) {
      RemoveWorkerDirectory(DirectoryOf(list[i].second));
      workers_.erase(list[i].second);
    }
  }
  std::sort(ended.begin(), ended.end());
  const absl::Time oldest = absl::Now() - options_.ended_kept_for;
  size_t left = ended.size();
  for (const auto& [ended_at, worker_id] : ended) {
    if (left <= options_.most_ended_kept && ended_at >= oldest) return;
    RemoveWorkerDirectory(DirectoryOf(worker_id));
    workers_.erase(worker_id);
    --left;
  }
}

}  // namespace hyperframes
