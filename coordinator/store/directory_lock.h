// One owner per state directory, for as long as its process lives.
#ifndef HYPERFRAMES_COORDINATOR_STORE_DIRECTORY_LOCK_H_
#define HYPERFRAMES_COORDINATOR_STORE_DIRECTORY_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace hyperframes {

class DirectoryLock {
 public:
  // Takes `<directory>/lock`, which then holds this process's id. The kernel drops the lock with
  // the process, so a kill -9 leaves nothing to clean up. FailedPrecondition: another process holds
  // it; the message names that process's id and the path. InvalidArgument: not a directory that can
  // be written. Thread-safe.
  static absl::StatusOr<std::unique_ptr<DirectoryLock>> Acquire(const std::string& directory);

  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int descriptor) : descriptor_(descriptor) {}
  const int descriptor_;
};

// FailedPrecondition when `directory` is on a network filesystem (the message names it): SQLite's
// locks and the order of its writes do not hold there. NotFound when it cannot be examined.
absl::Status RequireLocalFilesystem(const std::string& directory);

// The name of a network filesystem by its statfs magic number, or "" for any other.
std::string NetworkFilesystemName(long magic);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_STORE_DIRECTORY_LOCK_H_
