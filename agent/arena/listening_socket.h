// The agent's end of a unix socket path, and who may take it.
#ifndef HYPERFRAMES_AGENT_ARENA_LISTENING_SOCKET_H_
#define HYPERFRAMES_AGENT_ARENA_LISTENING_SOCKET_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace hyperframes {

// Holds `path` + ".lock" for as long as it lives: a socket file alone cannot tell a living agent
// from a dead one without a race between looking and unlinking.
class ListeningSocket {
 public:
  // Takes over a stale socket file. FailedPrecondition: another agent lives there ("in use"), or
  // the path is something other than a socket, which is left alone. InvalidArgument: the path is
  // too long. Unavailable: the kernel refused; the message says what.
  static absl::StatusOr<std::unique_ptr<ListeningSocket>> Open(const std::string& path);
  // Removes the socket file; the lock file stays, so that its inode never changes under a waiter.
  ~ListeningSocket();

  // Non-blocking SOCK_SEQPACKET, listening, reachable by this user only.
  int descriptor() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  ListeningSocket(std::string path, UniqueFd lock, UniqueFd socket)
      : path_(std::move(path)), lock_(std::move(lock)), socket_(std::move(socket)) {}

  const std::string path_;
  UniqueFd lock_;
  UniqueFd socket_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_LISTENING_SOCKET_H_
