#include "agent/transfer/transport_maker.h"

#include <utility>

#include "agent/transfer/tcp/tcp_transport.h"

namespace hyperframes {
namespace {

class TcpTransports final : public TransportMaker {
 public:
  PeerTransport kind() const override { return PeerTransport::kTcp; }
  absl::Status PrepareHello(PeerHello* /*hello*/) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Transport>> Make(const PeerHello& hello, int /*rank*/,
                                                  TcpSocket* control,
                                                  std::function<void()> progress) override {
    if (hello.transport != static_cast<uint16_t>(PeerTransport::kTcp)) {
      return absl::UnimplementedError(
          "this hftransfer moves bytes of host memory, by TCP, and its peer those of a GPU, by "
          "NCCL: both nodes need the same backend");
    }
    return std::unique_ptr<Transport>(new TcpTransport(control, std::move(progress)));
  }
};

}  // namespace

std::unique_ptr<TransportMaker> MakeTcpTransports() { return std::make_unique<TcpTransports>(); }

}  // namespace hyperframes
