#include "coordinator/store/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace hyperframes {

absl::StatusOr<std::unique_ptr<DirectoryLock>> DirectoryLock::Acquire(
    const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/lock");
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot open ", path, ": ", strerror(errno),
                                                   "; name a directory that this user may write"));
  }
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    char owner[32] = {};
    const ssize_t size = pread(descriptor, owner, sizeof(owner) - 1, 0);
    close(descriptor);
    const std::string pid(owner, size > 0 ? static_cast<size_t>(size) : 0);
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", directory, " is in use by process ",
                     pid.empty() ? "(unknown)" : std::string(absl::StripSuffix(pid, "\n")), " (",
                     path, "); stop it or name another --state-directory"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(descriptor, 0) != 0 ||
      pwrite(descriptor, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    const int error = errno;
    close(descriptor);
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", strerror(error)));
  }
  return std::unique_ptr<DirectoryLock>(new DirectoryLock(descriptor));
}

DirectoryLock::~DirectoryLock() { close(descriptor_); }

std::string NetworkFilesystemName(long magic) {
  switch (static_cast<unsigned long>(magic) & 0xffffffffUL) {
    case 0x6969:
      return "nfs";
    case 0x517B:
      return "smb";
    case 0xFE534D42:
      return "smb2";
    case 0xFF534D42:
      return "cifs";
    case 0x00C36400:
      return "ceph";
    case 0x0BD00BD0:
      return "lustre";
    case 0x01021997:
      return "9p";
    case 0x5346414F:
      return "afs";
    case 0x47504653:
      return "gpfs";
    case 0x65735546:
      return "fuse";  // sshfs, glusterfs, s3fs: none keeps SQLite's promises.
    default:
      return "";
  }
}

absl::Status RequireLocalFilesystem(const std::string& directory) {
  struct statfs info;
  if (statfs(directory.c_str(), &info) != 0) {
    return absl::NotFoundError(
        absl::StrCat("cannot examine state directory ", directory, ": ", strerror(errno)));
  }
  const std::string name = NetworkFilesystemName(static_cast<long>(info.f_type));
  if (!name.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", directory, " is on a network filesystem (", name,
                     "), where an acknowledged write can be lost; name a local directory"));
  }
  return absl::OkStatus();
}

}  // namespace hyperframes
