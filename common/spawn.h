// Starts another program from a process that has threads. Nothing of the caller's but its
// environment, its working directory and what it gives here reaches the new process: no signal
// mask or disposition, no other descriptor. What it says, and when it ends, is the caller's affair.
#ifndef HYPERFRAMES_COMMON_SPAWN_H_
#define HYPERFRAMES_COMMON_SPAWN_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hyperframes {

// What signals sent to a whole group reach it.
enum class SpawnGroup {
  kCallers,     // Those to the caller's, too.
  kOwn,         // None but its own.
  kOwnSession,  // Likewise, and no terminal of the caller's either.
};

struct SpawnOptions {
  std::vector<std::string> arguments;  // The first is the program's path; PATH is not searched.
  int input = -1;                      // Becomes its standard input; -1: /dev/null.
  int output = -1;                     // Becomes its standard output; -1: /dev/null.
  int inherited = -1;                  // Becomes its descriptor kInheritedFd; -1: none.
  std::string error_file;              // Made anew for its standard error; empty: the caller's own.
  SpawnGroup group = SpawnGroup::kCallers;
};

// The one descriptor beyond the standard three that the new process may have.
constexpr int kInheritedFd = 3;

// The new process, for the caller to collect. The caller keeps the descriptors that it gives,
// whatever their numbers and flags. NotFound: it cannot be started, the
// message names program and reason; ResourceExhausted: no descriptor left.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_SPAWN_H_
