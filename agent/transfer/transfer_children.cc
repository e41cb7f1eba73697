#include "agent/transfer/transfer_children.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/spawn.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kReady = "hftransfer ready: address=";
constexpr size_t kLongestLine = 256;
constexpr int kMostReads = 32;  // Of one near one in a Tick: twice what its pipe holds.

// Up to the end of a line, of the stream, or of time.
std::string ReadLine(int descriptor, absl::Duration patience) {
  const absl::Time end = MonotonicClock()->Now() + patience;
  std::string line;
  while (line.size() < kLongestLine) {
    const absl::Duration left = end - MonotonicClock()->Now();
    pollfd readable = {descriptor, POLLIN, 0};
    char c = 0;
    if (left <= absl::ZeroDuration() ||
        poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0 ||
        read(descriptor, &c, 1) != 1 || c == '\n') {
      return line;
    }
    line += c;
  }
  return line;
}

bool HasEnded(pid_t pid) { return waitpid(pid, nullptr, WNOHANG) == pid; }

}  // namespace

TransferChildren::~TransferChildren() = default;  // Closes the lifelines.

absl::StatusOr<pid_t> TransferChildren::Start(const std::vector<std::string>& arguments,
                                              int inherited, int output) {
  SpawnOptions spawn;
  spawn.arguments = {options_.program};
  spawn.arguments.insert(spawn.arguments.end(), arguments.begin(), arguments.end());
  spawn.arguments.insert(spawn.arguments.end(), {"--backend", options_.backend, "--deadline",
                                                 absl::FormatDuration(options_.deadline)});
  spawn.inherited = inherited;
  spawn.output = output;
  spawn.group = SpawnGroup::kOwn;  // What ends the agent's group leaves it alone.
  absl::StatusOr<pid_t> started = Spawn(spawn);
  if (started.ok()) return started;
  return absl::UnavailableError(
      absl::StrCat(started.status().message(), "; it belongs beside hfagent"));
}

absl::StatusOr<TransferChildren::Far> TransferChildren::StartFar(const std::string& device) {
  int output[2];
  int life[2];
  if (pipe2(output, O_CLOEXEC) != 0) return absl::ResourceExhaustedError("no pipe left");
  const UniqueFd said(output[0]);
  UniqueFd says(output[1]);
  if (pipe2(life, O_CLOEXEC) != 0) return absl::ResourceExhaustedError("no pipe left");
  UniqueFd theirs(life[0]);
  Far far;
  far.lifeline.reset(life[1]);
  HF_ASSIGN_OR_RETURN(
      far.pid, Start({"--gpu", device, "--agent-socket", options_.agent_socket, "--lifeline", "3"},
                     theirs.get(), says.get()));
  says.reset();  // Or its end would never be read.
  theirs.reset();
  const std::string line = ReadLine(said.get(), options_.start_deadline);
  if (line.compare(0, std::strlen(kReady), kReady) == 0) {
    far.address = line.substr(std::strlen(kReady));
    return far;
  }
  kill(far.pid, SIGKILL);
  waitpid(far.pid, nullptr, 0);
  return absl::UnavailableError(absl::StrCat("hftransfer of ", device, " did not start within ",
                                             absl::FormatDuration(options_.start_deadline),
                                             "; its reason is in the agent's log"));
}

absl::StatusOr<std::string> TransferChildren::FarAddress(const std::string& device,
                                                         const std::string& lease_id) {
  MutexLock start_lock(&start_mutex_);
  {
    MutexLock lock(&mutex_);
    const auto found = far_.find(device);
    if (found != far_.end() && !HasEnded(found->second.pid)) {
      found->second.asked_for = true;
      found->second.leases.insert(lease_id);
      return found->second.address;
    }
    if (found != far_.end()) far_.erase(found);
  }
  HF_ASSIGN_OR_RETURN(Far far, StartFar(device));
  LOG(INFO) << "hftransfer of " << device << " serves other nodes at " << far.address;
  far.asked_for = true;
  far.leases.insert(lease_id);
  MutexLock lock(&mutex_);
  return far_.emplace(device, std::move(far)).first->second.address;
}

absl::StatusOr<UniqueFd> TransferChildren::StartNear(const std::string& gpu) {
  MutexLock lock(&mutex_);
  if (near_.size() >= options_.most_near) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this node runs ", near_.size(), " hftransfers for its workers already"));
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError("no socket left for hftransfer");
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    return absl::ResourceExhaustedError("no pipe left for hftransfer");
  }
  Near near;
  near.traffic.reset(pipe[0]);
  const UniqueFd tells(pipe[1]);
  HF_ASSIGN_OR_RETURN(const pid_t pid, Start({"--gpu", gpu, "--worker-descriptor", "3",
                                              "--traffic-descriptor", absl::StrCat(STDOUT_FILENO),
                                              "--bandwidth", absl::StrCat(options_.bandwidth)},
                                             theirs.get(), tells.get()));
  near_.emplace(pid, std::move(near));
  return ours;
}

void TransferChildren::ReadTraffic(Near* near, std::vector<TrafficWindow>* windows) {
  char buffer[4096];
  for (int reads = 0; reads < kMostReads; ++reads) {
    const ssize_t got = read(near->traffic.get(), buffer, sizeof(buffer));
    if (got <= 0) return;
    near->unfinished.append(buffer, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = near->unfinished.find('\n', begin)) != std::string::npos;) {
      absl::optional<TrafficWindow> window =
          ReadWindow(near->unfinished.substr(begin, end - begin));
      if (window.has_value()) windows->push_back(*std::move(window));
      begin = end + 1;
    }
    near->unfinished.erase(0, begin);
    if (near->unfinished.size() > kLongestLine) near->unfinished.clear();
  }
}

void TransferChildren::Tick(const std::set<std::string>& live) {
  std::vector<TrafficWindow> windows;
  EndIdle(live, &windows);
  if (!options_.on_traffic) return;
  for (const TrafficWindow& window : windows) options_.on_traffic(window);
}

void TransferChildren::EndIdle(const std::set<std::string>& live,
                               std::vector<TrafficWindow>* windows) {
  MutexLock lock(&mutex_);
  for (auto it = far_.begin(); it != far_.end();) {
    Far& far = it->second;
    if (!std::exchange(far.asked_for, false)) {
      for (auto lease = far.leases.begin(); lease != far.leases.end();) {
        lease = live.count(*lease) > 0 ? ++lease : far.leases.erase(lease);
      }
    }
    const bool ended = HasEnded(far.pid);
    if (!far.leases.empty() && !ended) {
      ++it;
      continue;
    }
    if (!ended) ending_.insert(far.pid);
    it = far_.erase(it);  // With its lifeline: it ends by itself, after its last peer.
  }
  for (auto it = near_.begin(); it != near_.end();) {
    // First its end, then its last words: nothing follows them.
    const bool ended = HasEnded(it->first);
    ReadTraffic(&it->second, windows);
    it = ended ? near_.erase(it) : ++it;
  }
  for (auto it = ending_.begin(); it != ending_.end();) {
    it = HasEnded(*it) ? ending_.erase(it) : ++it;
  }
}

bool TransferChildren::Serves(const std::string& lease_id) const {
  MutexLock lock(&mutex_);
  return std::any_of(far_.begin(), far_.end(), [&lease_id](const auto& far) {
    return far.second.leases.count(lease_id) > 0;
  });
}

bool TransferChildren::KillFar(const std::string& device) {
  MutexLock lock(&mutex_);
  const auto found = far_.find(device);
  return found != far_.end() && kill(found->second.pid, SIGKILL) == 0;
}

int TransferChildren::far_children() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(far_.size());
}

int TransferChildren::near_children() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(near_.size());
}

}  // namespace hyperframes
