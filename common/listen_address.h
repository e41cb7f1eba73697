// Where a daemon listens or a client connects: "127.0.0.1:7461", "[::1]:0", "node7:7463".
#ifndef HYPERFRAMES_COMMON_LISTEN_ADDRESS_H_
#define HYPERFRAMES_COMMON_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hyperframes {

struct HostPort {
  std::string host;  // Without brackets.
  int port = 0;      // 0: the kernel chooses when listening.
};

// ":0" and ":7461" mean 127.0.0.1. InvalidArgument: no port, a port outside 0..65535, an IPv6
// address without brackets, or a host with other characters than letters, digits, '.', '-', '_' and
// ':' in brackets; the message names the value and an example.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

// "127.0.0.1:7461", "[::1]:7461": what gRPC takes.
std::string FormatHostPort(const HostPort& address);

// True for 127.0.0.0/8, ::1 and "localhost".
bool IsLoopback(const HostPort& address);

// OK on loopback, or anywhere with TLS. Otherwise FailedPrecondition: without TLS everybody on the
// network could take leases and start programs.
absl::Status RequireLoopback(const HostPort& address, bool has_tls);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_LISTEN_ADDRESS_H_
