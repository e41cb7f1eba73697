// The gRPC channel to a coordinator: address, credentials, keepalive, size limits.
#ifndef HYPERFRAMES_CLIENT_CPP_CHANNEL_H_
#define HYPERFRAMES_CLIENT_CPP_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace hyperframes {

// A gRPC server at its defaults counts pings that come closer together than this while calls are
// running, and answers the third one with GOAWAY "too_many_pings".
constexpr int kServerShortestPingMs = 5 * 60 * 1000;

// Keepalive that no server at its defaults answers with GOAWAY: pings only while a call is running,
// further apart than kServerShortestPingMs. An idle channel sends none. Deadlines, not pings,
// notice a dead peer; pings keep long calls alive through address translation.
grpc::ChannelArguments ClientChannelArguments();

// Does not connect yet. `address` is host:port; `ca_file` empty: no TLS. InvalidArgument: an
// address that is none; NotFound, FailedPrecondition: the CA file cannot be read or is empty (the
// message has its path).
absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateClientChannel(const std::string& address,
                                                                   const std::string& ca_file);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CPP_CHANNEL_H_
