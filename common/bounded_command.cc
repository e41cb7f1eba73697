#include "common/bounded_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/spawn.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

constexpr size_t kPiece = 65536;

// Reads to the end of the output. OK: it was closed.
absl::Status Listen(const BoundedCommand& command, int from, std::string* output) {
  const absl::Time end = MonotonicClock()->Now() + command.deadline;
  std::string piece(kPiece, '\0');
  while (true) {
    const absl::Duration left = end - MonotonicClock()->Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("killed after ", absl::FormatDuration(command.deadline)));
    }
    pollfd watched[] = {{from, POLLIN, 0}, {command.stop, POLLIN, 0}};
    const int64_t wait_ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1, 60000);
    if (poll(watched, 2, static_cast<int>(wait_ms)) < 0 && errno != EINTR) {
      return absl::InternalError(absl::StrCat("poll: ", strerror(errno)));
    }
    if (watched[1].revents != 0) return absl::CancelledError("no longer wanted");
    if (watched[0].revents == 0) continue;
    const ssize_t got = read(from, &piece[0], piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::OkStatus();
    output->append(piece, 0, static_cast<size_t>(got));
    if (output->size() > command.most_output) {
      return absl::ResourceExhaustedError(
          absl::StrCat("killed after saying more than ", command.most_output, " bytes"));
    }
  }
}

std::string Ending(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("it was ended by signal ", WTERMSIG(status));
  return absl::StrCat("it ended with ", WEXITSTATUS(status));
}

}  // namespace

absl::Status RunBounded(const BoundedCommand& command, std::string* output) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no pipe: ", strerror(errno)));
  }
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  SpawnOptions spawn;
  spawn.arguments = command.arguments;
  spawn.input = command.input;
  spawn.output = to.get();
  HF_ASSIGN_OR_RETURN(const pid_t pid, Spawn(spawn));
  to.reset();
  const absl::Status listened = Listen(command, from.get(), output);
  // Not yet collected, so the number is still its own.
  if (!listened.ok()) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string& program = command.arguments[0];
  if (!listened.ok()) {
    return absl::Status(listened.code(), absl::StrCat(program, ": ", listened.message()));
  }
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(program, ": ", Ending(status)));
}

}  // namespace hyperframes
