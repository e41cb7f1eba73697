// Makes the transports of this process's backend: for the near side (rank 0), which says hello, and
// for the far side (rank 1), which answers.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TRANSPORT_MAKER_H_
#define HYPERFRAMES_AGENT_TRANSFER_TRANSPORT_MAKER_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/transfer/peer_wire.h"
#include "agent/transfer/tcp/tcp_socket.h"
#include "agent/transfer/transport.h"

namespace hyperframes {

// Thread-safe.
class TransportMaker {
 public:
  virtual ~TransportMaker() = default;

  // What the near side's hellos name.
  virtual PeerTransport kind() const = 0;
  // Adds to a hello what the far side must know beforehand.
  virtual absl::Status PrepareHello(PeerHello* hello) = 0;
  // Both ends call it after the far side's welcome. `control` outlives the transport. `progress`
  // (may be null) is told while a Send moves bytes, where the transport knows. Unimplemented: the
  // hello asks for a transport that this process does not have.
  virtual absl::StatusOr<std::unique_ptr<Transport>> Make(const PeerHello& hello, int rank,
                                                          TcpSocket* control,
                                                          std::function<void()> progress) = 0;
};

// For memory that the processor can read and write. `bytes_per_second`, unless 0, is what all of
// its transports together move each way at most: a network that is simulated.
std::unique_ptr<TransportMaker> MakeTcpTransports(double bytes_per_second = 0);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TRANSPORT_MAKER_H_
