#include "agent/arena/listening_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/status_macros.h"

namespace hyperframes {
namespace {

absl::Status SystemError(const std::string& what, const std::string& path) {
  return absl::UnavailableError(what + " " + path + ": " + strerror(errno));
}

absl::Status InUse(const std::string& path) {
  return absl::FailedPreconditionError(
      "worker socket " + path +
      " is in use by another running hfagent: stop it, or choose another --run-directory");
}

// Makes way at `path`: nothing there, or a socket that nobody listens on.
absl::Status MakeWay(const sockaddr_un& address, const std::string& path) {
  struct stat file;
  if (lstat(path.c_str(), &file) != 0) {
    return errno == ENOENT ? absl::OkStatus() : SystemError("cannot look at worker socket", path);
  }
  if (!S_ISSOCK(file.st_mode)) {
    return absl::FailedPreconditionError(
        path +
        " exists and is not a socket; it is left alone: move it away, or choose another "
        "--run-directory");
  }
  UniqueFd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN) {
    return InUse(path);
  }
  // EPROTOTYPE: somebody listens with another kind of socket.
  if (errno == EPROTOTYPE) return InUse(path);
  if (errno != ECONNREFUSED) return SystemError("cannot probe worker socket", path);
  if (unlink(path.c_str()) != 0) return SystemError("cannot remove stale worker socket", path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ListeningSocket>> ListeningSocket::Open(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError("worker socket '" + path.substr(0, 200) +
                                      "' is longer than 107 bytes: choose a shorter "
                                      "--run-directory");
  }
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd lock(open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return SystemError("cannot open lock file of worker socket", path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return InUse(path);
  HF_RETURN_IF_ERROR(MakeWay(address, path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return SystemError("cannot create worker socket", path);
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError("cannot bind worker socket", path);
  }
  if (chmod(path.c_str(), 0600) != 0 || listen(socket.get(), /*backlog=*/128) != 0) {
    return SystemError("cannot listen on worker socket", path);
  }
  return std::unique_ptr<ListeningSocket>(
      new ListeningSocket(path, std::move(lock), std::move(socket)));
}

ListeningSocket::~ListeningSocket() { unlink(path_.c_str()); }

}  // namespace hyperframes
