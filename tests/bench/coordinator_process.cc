#include "tests/bench/coordinator_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/spawn.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr int kPatienceMs = 20000;

// Up to the end of the line, of the stream, or of patience.
std::string ReadLine(int fd) {
  std::string line;
  pollfd readable = {fd, POLLIN, 0};
  char c = 0;
  while (poll(&readable, 1, kPatienceMs) > 0 && read(fd, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorProcess>> CoordinatorProcess::Start(
    const std::string& binary) {
  if (access(binary.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("no program at ", binary,
                                            "; build //coordinator:hfcoordinator and name it with "
                                            "--coordinator-binary"));
  }
  std::unique_ptr<CoordinatorProcess> process(new CoordinatorProcess());
  const char* const base = getenv("TEST_TMPDIR");
  process->directory_ = absl::StrCat(base == nullptr ? "/tmp" : base, "/hfcontrol.XXXXXX");
  int ends[2];
  if (mkdtemp(process->directory_.data()) == nullptr || pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("cannot make ", process->directory_));
  }
  process->stdout_fd_ = ends[0];
  SpawnOptions spawn;
  spawn.arguments = {binary, "--listen-address=127.0.0.1:0", "--http-address=127.0.0.1:0",
                     "--state-directory=" + process->directory_};
  spawn.output = ends[1];
  const absl::StatusOr<pid_t> pid = Spawn(spawn);
  close(ends[1]);
  HF_RETURN_IF_ERROR(pid.status());
  process->pid_ = *pid;
  const std::string line = ReadLine(ends[0]);
  const std::string mark = "grpc=";
  const size_t at = line.find(mark);
  if (at == std::string::npos) {
    return absl::UnavailableError(
        absl::StrCat(binary, " said \"", line.substr(0, 128), "\" instead of its ready line"));
  }
  process->address_ = line.substr(at + mark.size(), line.find(' ', at) - at - mark.size());
  return process;
}

CoordinatorProcess::~CoordinatorProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  if (stdout_fd_ >= 0) close(stdout_fd_);
  // Made by mkdtemp above, so the name holds nothing that a shell would read.
  if (!directory_.empty() && system(absl::StrCat("rm -rf '", directory_, "'").c_str()) != 0) return;
}

}  // namespace hyperframes
