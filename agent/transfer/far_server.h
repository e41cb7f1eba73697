// The far side of hftransfer: listens for peers, opens the lease whose token a peer shows, and
// carries out what the peer announces inside that lease. A thread for each connection.
#ifndef HYPERFRAMES_AGENT_TRANSFER_FAR_SERVER_H_
#define HYPERFRAMES_AGENT_TRANSFER_FAR_SERVER_H_

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/device.h"
#include "agent/transfer/peer_wire.h"
#include "agent/transfer/tcp/tcp_socket.h"
#include "agent/transfer/transport_maker.h"
#include "common/mutex.h"

namespace hyperframes {

// Where leases come from: the agent of this node. Thread-safe.
class LeaseSource {
 public:
  virtual ~LeaseSource() = default;
  // The lease's memory, usable by this process's device. NotFound: no such lease.
  // PermissionDenied: not its token.
  virtual absl::StatusOr<std::unique_ptr<Memory>> Open(const std::string& lease_id,
                                                       const std::string& token) = 0;
  // Its memory is unmapped here, and nobody will ask for it again: its frames were the peer's.
  virtual void Return(const std::string& lease_id) = 0;
  // True, with its id, when an opened lease is asked back; once more when its time is over.
  virtual bool TakeRevocation(std::string* /*lease_id*/) { return false; }
};

struct FarServerOptions {
  HostPort listen_address;
  absl::Duration deadline = absl::Seconds(10);  // Without a byte, inside a message or a frame.
  size_t most_connections = 256;
};

// Thread-safe.
class FarServer {
 public:
  // `device`, `leases` and `transports` outlive the server. Codes as TcpListener::Listen.
  static absl::StatusOr<std::unique_ptr<FarServer>> Start(FarServerOptions options, Device* device,
                                                          LeaseSource* leases,
                                                          TransportMaker* transports);
  ~FarServer();  // Ends all connections.

  const HostPort& address() const { return listener_->address(); }
  // Peers that have shown a token and are still connected.
  int peers() const HF_EXCLUDES(mutex_);

 private:
  struct Lease {
    std::string token;
    std::unique_ptr<Memory> memory;
    int users = 0;
    int asked_back = 0;  // How often.
  };
  struct Connection {
    std::unique_ptr<TcpSocket> socket;
    std::thread thread;
    std::atomic<bool> over{false};
  };

  FarServer(FarServerOptions options, LeaseSource* leases, TransportMaker* transports,
            std::unique_ptr<TcpListener> listener, std::unique_ptr<Stream> fills);
  void Run();
  void ForgetFinished(bool all);
  absl::Status Serve(TcpSocket* socket);
  absl::Status ServeLease(TcpSocket* socket, const PeerHello& hello, const Lease& lease);
  // Tells the peer when its lease is asked back; Unavailable once its time is over.
  absl::Status PassRevocationOn(TcpSocket* socket, const PeerHello& hello, bool* told)
      HF_EXCLUDES(mutex_);
  void TakeRevocations() HF_EXCLUDES(mutex_);
  absl::Status Handle(TcpSocket* socket, Transport* transport, const PeerHello& hello,
                      const PeerMessage& message, Memory* memory);
  absl::Status Fill(const PeerMessage& message, Memory* memory);
  absl::StatusOr<Lease*> Acquire(const PeerHello& hello) HF_EXCLUDES(mutex_);
  void Release(const std::string& lease_id) HF_EXCLUDES(mutex_);

  const FarServerOptions options_;
  LeaseSource* const leases_;
  TransportMaker* const transports_;
  const std::unique_ptr<TcpListener> listener_;
  const std::unique_ptr<Stream> fills_;
  std::atomic<bool> stopping_{false};
  std::list<Connection> connections_;  // Of the accepting thread, and of the destructor after it.
  mutable Mutex mutex_;
  std::map<std::string, Lease> open_ HF_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: starts when everything above is ready.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_FAR_SERVER_H_
