#include "agent/arena/connected_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace hyperframes {

absl::StatusOr<UniqueFd> ConnectSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError("worker socket '" + path.substr(0, 200) +
                                      "' has no length between 1 and 107: use a shorter run "
                                      "directory for the agent");
  }
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return absl::UnavailableError(std::string("no unix socket: ") + strerror(errno));
  }
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError("no agent listens on " + path + " (" + strerror(errno) +
                                  "): is hfagent running on this node?");
  }
  return socket;
}

}  // namespace hyperframes
