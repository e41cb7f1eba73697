// The worker's end of the descriptor channel: presents a lease's token to the agent that owns the
// memory and receives the descriptor (SCM_RIGHTS over a unix SOCK_SEQPACKET socket). It keeps a
// duplicate of every descriptor, and hands all of them back when an agent that was restarted asks
// (adoption). The agent notices the worker's end by the connection closing.
#ifndef HYPERFRAMES_AGENT_ARENA_DESCRIPTOR_CLIENT_H_
#define HYPERFRAMES_AGENT_ARENA_DESCRIPTOR_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace hyperframes {

struct DescriptorClientOptions {
  std::string socket_path;
  std::string worker_id;  // HYPERFRAMES_WORKER_ID; empty for a process that no agent started.
  std::string job_id;
  int counters_descriptor =
      -1;  // memfd of the counters page; duplicated and handed over. -1: none.
  absl::Duration timeout = absl::Seconds(5);  // For one request.
  absl::Duration reconnect_interval = absl::Milliseconds(200);
};

struct MappedLease {
  int descriptor = -1;  // Owned by the caller, close-on-exec.
  Bytes bytes = 0;
};

class DescriptorClient {
 public:
  // Connects, says hello, and starts the thread that reconnects and re-offers descriptors for as
  // long as this object lives. Unavailable: nobody listens; the message names the path.
  // FailedPrecondition: another protocol version.
  static absl::StatusOr<std::unique_ptr<DescriptorClient>> Connect(DescriptorClientOptions options);
  virtual ~DescriptorClient() = default;

  // NotFound: no such lease, or not committed. PermissionDenied: wrong token, or another user's
  // process. DeadlineExceeded, Unavailable: the agent does not answer.
  virtual absl::StatusOr<MappedLease> MapLease(const std::string& lease_id,
                                               const std::string& token) = 0;

  // Tells the agent that this worker has unmapped the lease and closed its own descriptors. Forgets
  // the kept duplicate. OK also while the agent is away (it learns when it is back).
  virtual absl::Status ReturnLease(const std::string& lease_id) = 0;

  // The end of a socket whose other end a fresh hftransfer for `gpu` holds (agent/transfer). It
  // ends with the socket. Unimplemented: an agent that cannot. Else as MapLease.
  virtual absl::StatusOr<UniqueFd> StartTransfer(const std::string& gpu) = 0;

  // True once, after an agent has asked for the lease back: the caller returns it at its next
  // quiescent point.
  virtual bool TakeRevocation(std::string* lease_id) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_DESCRIPTOR_CLIENT_H_
