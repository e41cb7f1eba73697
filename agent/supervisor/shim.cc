#include "agent/supervisor/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kKillRound = absl::Milliseconds(10);

sigset_t HandledSignals() {
  sigset_t handled;
  sigemptyset(&handled);
  for (int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&handled, signal);
  return handled;
}

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(what + ": " + strerror(errno));
}

// "stage\0errno", short enough for one atomic write into the pipe.
[[noreturn]] void ReportFailure(int failure, const char* stage) {
  char text[256];
  const int length = snprintf(text, sizeof(text), "%s: %s", stage, strerror(errno));
  if (write(failure, text, std::min<size_t>(length, sizeof(text) - 1)) < 0) _exit(126);
  _exit(127);
}

std::string DescribeEnd(const WorkerStatus& status) {
  if (status.term_signal != 0) {
    return std::string("ended by signal ") + std::to_string(status.term_signal) + " (" +
           strsignal(status.term_signal) + ")";
  }
  return status.exit_code == 0 ? "" : "exit code " + std::to_string(status.exit_code);
}

}  // namespace

bool SignalProcess(const ProcessIdentity& process, int signal, int value) {
  if (process.pid <= 0) return false;
  // The descriptor pins the process; only then is it safe to look who it is.
  UniqueFd pinned(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!pinned.valid() || !ProcessRuns(process)) return false;
  siginfo_t info = {};
  info.si_signo = signal;
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_int = value;
  return syscall(SYS_pidfd_send_signal, pinned.get(), signal, value < 0 ? nullptr : &info, 0) == 0;
}

absl::Status Shim::Run() {
  HF_RETURN_IF_ERROR(Prepare());
  HF_ASSIGN_OR_RETURN(BoundedLog log,
                      BoundedLog::Open(directory_ + "/" + kLogFile, spec_.log_limit));
  const absl::Status started = StartWorker();
  if (!started.ok()) {
    status_.exit_code = 127;
    status_.message = std::string(started.message());
    log.AddLine(status_.message);
    return Record(WorkerState::kExited);
  }
  return Serve(&log);
}

absl::Status Shim::Prepare() {
  lock_.reset(open((directory_ + "/" + kLockFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock_.valid()) return SystemError("cannot open the lock of " + directory_);
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  if (fcntl(lock_.get(), F_OFD_SETLK, &lock) != 0) {
    return absl::AlreadyExistsError("another shim runs in " + directory_);
  }
  if (ReadStatus(directory_).status().code() != absl::StatusCode::kNotFound) {
    return absl::AlreadyExistsError("the worker of " + directory_ + " has been started before");
  }
  HF_ASSIGN_OR_RETURN(spec_, ReadSpec(directory_));
  if (spec_.command.empty()) return absl::InvalidArgumentError("the worker has no command");
  // Orphans of the worker come to us instead of to init: nothing of the tree gets away.
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return SystemError("no subreaper");
  const sigset_t handled = HandledSignals();
  sigprocmask(SIG_BLOCK, &handled, nullptr);
  signals_.reset(signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return SystemError("no signalfd");
  status_.shim = IdentifyProcess(getpid());
  return Record(WorkerState::kStarting);
}

absl::Status Shim::Record(WorkerState state) {
  if (state != status_.state && !IsLegalMove(status_.state, state)) {
    return absl::InternalError("a worker cannot go back to an earlier state");
  }
  status_.state = state;
  return WriteStatus(directory_, status_);
}

absl::Status Shim::StartWorker() {
  int output[2], failure[2];
  if (pipe2(output, O_CLOEXEC) != 0) return SystemError("no pipe");
  output_.reset(output[0]);
  UniqueFd output_end(output[1]);
  if (pipe2(failure, O_CLOEXEC) != 0) return SystemError("no pipe");
  UniqueFd failure_read(failure[0]), failure_end(failure[1]);
  const pid_t pid = fork();
  if (pid < 0) return SystemError("cannot fork");
  if (pid == 0) BecomeWorker(output_end.get(), failure_end.get());
  status_.worker = IdentifyProcess(pid);
  output_end.reset();
  failure_end.reset();
  char text[256];
  ssize_t length;
  do {
    length = read(failure_read.get(), text, sizeof(text));  // Ends when exec closes the pipe.
  } while (length < 0 && errno == EINTR);
  if (length > 0) {
    waitpid(pid, nullptr, 0);
    return absl::NotFoundError("the worker could not be started: " + std::string(text, length));
  }
  fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  return Record(WorkerState::kRunning);
}

void Shim::BecomeWorker(int output, int failure) {
  // The shim is its only way to be ended and to be heard, so it goes with a killed shim. The shim
  // has one thread, which is why the death signal cannot fire early.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != status_.shim.pid) _exit(127);
  const sigset_t handled = HandledSignals();
  sigprocmask(SIG_UNBLOCK, &handled, nullptr);
  setpgid(0, 0);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0) {
    ReportFailure(failure, "standard streams");
  }
  const std::string& where = spec_.working_directory.empty() ? directory_ : spec_.working_directory;
  if (chdir(where.c_str()) != 0) {
    ReportFailure(failure, ("working directory '" + where.substr(0, 120) + "'").c_str());
  }
  clearenv();  // execvp looks PATH up here, so the worker's own must be in place.
  for (const auto& [name, value] : spec_.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (std::string& argument : spec_.command) arguments.push_back(&argument[0]);
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  ReportFailure(failure, ("command '" + spec_.command[0].substr(0, 120) + "'").c_str());
}

absl::Status Shim::Serve(BoundedLog* log) {
  bool output_open = true;
  while (children_left_) {
    absl::Duration wait = kill_at_ - MonotonicClock()->Now();
    if (killing_) wait = kKillRound;
    const int timeout =
        wait == absl::InfiniteDuration()
            ? -1
            : static_cast<int>(std::max<int64_t>(
                  0, std::min<int64_t>(absl::ToInt64Milliseconds(wait) + 1, 60000)));
    pollfd watched[2] = {{signals_.get(), POLLIN, 0},
                         {output_open ? output_.get() : -1, POLLIN, 0}};
    if (poll(watched, 2, timeout) < 0 && errno != EINTR) return SystemError("poll");
    if (watched[1].revents != 0) output_open = log->Drain(output_.get());
    HandleSignals();
    Reap();
    if (children_left_ && MonotonicClock()->Now() >= kill_at_) EndStragglers();
  }
  // Whoever could still write has ended: what the pipe holds now is all there will ever be. It
  // holds at most a pipe's capacity, so this ends.
  if (output_open) log->Drain(output_.get());
  if (status_.message.empty()) status_.message = DescribeEnd(status_);
  return Record(WorkerState::kExited);
}

void Shim::HandleSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (info.ssi_signo == SIGCHLD) continue;
    const bool has_grace = info.ssi_code == SI_QUEUE && info.ssi_int >= 0;
    BeginStop(has_grace ? absl::Milliseconds(info.ssi_int) : kDefaultGrace);
  }
}

void Shim::BeginStop(absl::Duration grace) {
  if (status_.state == WorkerState::kRunning) {
    // A status that cannot be written must not keep the tree alive.
    Record(WorkerState::kStopping).IgnoreError();
    for (const ProcessIdentity& process : Descendants(getpid())) SignalProcess(process, SIGTERM);
  }
  kill_at_ = std::min(kill_at_, MonotonicClock()->Now() + grace);
}

void Shim::Reap() {
  while (true) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0) children_left_ = errno != ECHILD;
    if (pid <= 0) return;
    if (pid != status_.worker.pid || worker_ended_) continue;
    worker_ended_ = true;
    status_.ended = MonotonicClock()->Now();
    if (WIFSIGNALED(status)) {
      status_.term_signal = WTERMSIG(status);
    } else {
      status_.exit_code = WEXITSTATUS(status);
    }
    BeginStop(kLeftoverGrace);
  }
}

void Shim::EndStragglers() {
  killing_ = true;
  for (const ProcessIdentity& process : Descendants(getpid())) SignalProcess(process, SIGKILL);
}

}  // namespace hyperframes
