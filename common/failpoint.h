// Places at which a test ends this very process, as a power cut would: by SIGKILL, with nothing
// flushed and nobody told. Where HYPERFRAMES_FAILPOINT is not set, a place costs one comparison.
//
//   Failpoint("checkpoint_before_commit");
//   ... the store's transaction ...
//   Failpoint("checkpoint_after_commit");
#ifndef HYPERFRAMES_COMMON_FAILPOINT_H_
#define HYPERFRAMES_COMMON_FAILPOINT_H_

#include <string>

namespace hyperframes {
namespace failpoint_internal {

// HYPERFRAMES_FAILPOINT was set when the process started.
extern const bool armed;

void Pass(const char* name);

}  // namespace failpoint_internal

// Does not return when HYPERFRAMES_FAILPOINT is "<name>", or "<name>:N" and this is the N-th pass
// of the process (N >= 1). Any thread, any locks.
inline void Failpoint(const char* name) {
  if (failpoint_internal::armed) failpoint_internal::Pass(name);
}

// Empty when `text` can be a value of HYPERFRAMES_FAILPOINT, else the sentence that says why not. A
// value that is none ends the process at its first failpoint: a test that kills nothing by a slip
// of the pen would pass for nothing.
std::string FailpointProblem(const std::string& text);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_FAILPOINT_H_
