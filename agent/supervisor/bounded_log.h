// A worker's log: everything it prints up to a limit, then one line that says so.
#ifndef HYPERFRAMES_AGENT_SUPERVISOR_BOUNDED_LOG_H_
#define HYPERFRAMES_AGENT_SUPERVISOR_BOUNDED_LOG_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace hyperframes {

// Used by one thread.
class BoundedLog {
 public:
  // Appends to `path`, readable by this user alone. Unavailable: it cannot be opened.
  static absl::StatusOr<BoundedLog> Open(const std::string& path, Bytes limit);

  // Takes what the non-blocking `pipe` holds now. False: every writer has closed it. What exceeds
  // the limit, or what a full disk refuses, is read and dropped: a worker must never block on its
  // log.
  bool Drain(int pipe);
  // A line of the supervisor's own, also beyond the limit.
  void AddLine(const std::string& line);

 private:
  BoundedLog(UniqueFd file, Bytes size, Bytes limit)
      : file_(std::move(file)), size_(size), limit_(limit) {}
  bool Write(const char* data, size_t size);

  UniqueFd file_;
  Bytes size_;
  Bytes limit_;
  bool closed_ = false;  // The closing line is written.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SUPERVISOR_BOUNDED_LOG_H_
