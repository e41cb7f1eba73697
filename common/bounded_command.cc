#include "common/bounded_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

constexpr size_t kPiece = 65536;

absl::StatusOr<pid_t> Spawn(const BoundedCommand& command, int output) {
  std::vector<std::string> words = command.arguments;
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(&word[0]);
  arguments.push_back(nullptr);
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_init(&actions);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  if (command.input >= 0) {
    posix_spawn_file_actions_adddup2(&actions, command.input, 0);
  } else {
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == 0) return pid;
  return absl::NotFoundError(absl::StrCat("cannot start ", words[0], ": ", strerror(error)));
}

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
  HF_ASSIGN_OR_RETURN(const pid_t pid, Spawn(command, to.get()));
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
