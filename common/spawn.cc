#include "common/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

// Beyond every number that it may get in the new process, where giving out one descriptor could
// otherwise overwrite the other: a daemon whose own standard ones are closed has them as 0 to 3.
absl::StatusOr<UniqueFd> MoveAway(int fd) {
  if (fd < 0) return UniqueFd();
  UniqueFd away(fcntl(fd, F_DUPFD_CLOEXEC, kInheritedFd + 1));
  if (away.valid()) return away;
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot pass descriptor ", fd, " on: ", strerror(errno)));
}

short FlagsOf(SpawnGroup group) {
  const short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
  switch (group) {
    case SpawnGroup::kCallers:
      break;
    case SpawnGroup::kOwn:
      return flags | POSIX_SPAWN_SETPGROUP;
    case SpawnGroup::kOwnSession:
      return flags | POSIX_SPAWN_SETSID;
  }
  return flags;
}

// posix_spawn's two descriptions of a new process, freed with it.
class Description {
 public:
  Description() {
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  ~Description() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }

  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
};

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  HF_ASSIGN_OR_RETURN(const UniqueFd input, MoveAway(options.input));
  HF_ASSIGN_OR_RETURN(const UniqueFd output, MoveAway(options.output));
  HF_ASSIGN_OR_RETURN(const UniqueFd inherited, MoveAway(options.inherited));
  Description child;
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&child.attributes, &none);
  posix_spawnattr_setsigdefault(&child.attributes, &all);
  posix_spawnattr_setflags(&child.attributes, FlagsOf(options.group));
  if (input.valid()) {
    posix_spawn_file_actions_adddup2(&child.actions, input.get(), STDIN_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&child.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  if (output.valid()) {
    posix_spawn_file_actions_adddup2(&child.actions, output.get(), STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&child.actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  if (!options.error_file.empty()) {
    posix_spawn_file_actions_addopen(&child.actions, STDERR_FILENO, options.error_file.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
  }
  int first_closed = kInheritedFd;
  if (inherited.valid()) {
    posix_spawn_file_actions_adddup2(&child.actions, inherited.get(), first_closed++);
  }
  posix_spawn_file_actions_addclosefrom_np(&child.actions, first_closed);
  std::vector<std::string> words = options.arguments;
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, arguments[0], &child.actions, &child.attributes, arguments.data(), environ);
  if (error == 0) return pid;
  return absl::NotFoundError(absl::StrCat("cannot start ", words[0], ": ", strerror(error)));
}

}  // namespace hyperframes
