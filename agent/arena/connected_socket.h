// Connecting to an agent's unix socket.
#ifndef HYPERFRAMES_AGENT_ARENA_CONNECTED_SOCKET_H_
#define HYPERFRAMES_AGENT_ARENA_CONNECTED_SOCKET_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace hyperframes {

// A SOCK_SEQPACKET connection that does not block. InvalidArgument: a path that no socket can have.
// Unavailable: nobody listens there.
absl::StatusOr<UniqueFd> ConnectSocket(const std::string& path);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_CONNECTED_SOCKET_H_
