// The host backend's transport: the bytes follow their announcement on the control connection.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TCP_TCP_TRANSPORT_H_
#define HYPERFRAMES_AGENT_TRANSFER_TCP_TCP_TRANSPORT_H_

#include <functional>
#include <utility>

#include "agent/transfer/tcp/tcp_socket.h"
#include "agent/transfer/transport.h"

namespace hyperframes {

// `socket` outlives the transport. `progress` (may be null) is told while a Send moves bytes.
class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(TcpSocket* socket, std::function<void()> progress = nullptr)
      : socket_(socket), progress_(std::move(progress)) {}

  absl::Status Send(const char* from, Bytes bytes) override {
    return socket_->Write(from, bytes, progress_);
  }
  absl::Status Receive(char* to, Bytes bytes) override { return socket_->Read(to, bytes); }
  void Abort() override { socket_->Abort(); }

 private:
  TcpSocket* const socket_;
  const std::function<void()> progress_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TCP_TCP_TRANSPORT_H_
