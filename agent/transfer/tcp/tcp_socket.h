// A TCP connection on which nothing takes longer than a deadline: each read and write fails once no
// byte has moved for that long. Loopback only, for there is no TLS here.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TCP_TCP_SOCKET_H_
#define HYPERFRAMES_AGENT_TRANSFER_TCP_TCP_SOCKET_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/listen_address.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace hyperframes {

// One reader, one writer, and anybody who aborts, at the same time.
class TcpSocket {
 public:
  // Unavailable names the address: nobody listens, or no answer within `deadline`.
  // FailedPrecondition: no loopback address.
  static absl::StatusOr<std::unique_ptr<TcpSocket>> Connect(const HostPort& address,
                                                            absl::Duration deadline);
  // Takes a connection that was accepted.
  TcpSocket(UniqueFd socket, std::string peer, absl::Duration deadline);

  // All of it. Unavailable names the peer: it is gone, aborted, or took or sent nothing for the
  // deadline. `progress` (may be null) is told whenever bytes have moved.
  absl::Status Write(const void* data, Bytes bytes,
                     const std::function<void()>& progress = nullptr);
  absl::Status Read(void* data, Bytes bytes);

  // True once there is something to read, or the connection has ended; false after `patience`.
  bool WaitReadable(absl::Duration patience);

  // False: the peer has closed its end, and everything that it sent was read. Unavailable: the
  // connection is broken. Does not block once WaitReadable has returned true.
  absl::StatusOr<bool> HasMore();

  // Ends reads and writes under way and later ones.
  void Abort();

  const std::string& peer() const { return peer_; }

 private:
  absl::Status Gone(const char* what, int error) const;
  absl::Status Stalled(const char* what) const;

  const UniqueFd socket_;
  const std::string peer_;
  const absl::Duration deadline_;
};

// A socket that peers connect to.
class TcpListener {
 public:
  // Port 0: the kernel chooses. FailedPrecondition: no loopback address. Unavailable: taken.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Listen(const HostPort& address);

  const HostPort& address() const { return address_; }
  // The next connection, or null after `patience`.
  std::unique_ptr<TcpSocket> Accept(absl::Duration patience, absl::Duration deadline);

 private:
  TcpListener(UniqueFd socket, HostPort address)
      : socket_(std::move(socket)), address_(std::move(address)) {}

  const UniqueFd socket_;
  const HostPort address_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TCP_TCP_SOCKET_H_
