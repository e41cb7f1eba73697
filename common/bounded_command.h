// Runs a program that answers on its standard output and ends, with a deadline and a limit on what
// it may say. Nothing of the caller's but its environment and its standard error reaches it.
#ifndef HYPERFRAMES_COMMON_BOUNDED_COMMAND_H_
#define HYPERFRAMES_COMMON_BOUNDED_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace hyperframes {

struct BoundedCommand {
  std::vector<std::string> arguments;  // The first is the program's path.
  absl::Duration deadline = absl::Seconds(60);
  size_t most_output = 1 << 20;
  int stop = -1;   // A descriptor: once readable, the program is killed. -1: none.
  int input = -1;  // A descriptor that becomes its standard input. -1: there is nothing to read.
};

// Blocks until the program has ended; the calling thread stays alive meanwhile. `output` is what it
// has said, also when it fails. NotFound: it cannot be started; DeadlineExceeded: killed at the
// deadline; ResourceExhausted: killed for saying too much; Cancelled: killed by `stop`; Internal:
// it ended otherwise than with 0, the message says how.
absl::Status RunBounded(const BoundedCommand& command, std::string* output);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_BOUNDED_COMMAND_H_
