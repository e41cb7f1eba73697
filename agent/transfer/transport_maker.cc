#include "agent/transfer/transport_maker.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/transfer/tcp/tcp_transport.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// One way of a simulated network.
class Wire {
 public:
  explicit Wire(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Blocks for as long as `bytes` take behind those of earlier calls.
  void Carry(Bytes bytes) HF_EXCLUDES(mutex_) {
    if (bytes_per_second_ <= 0) return;
    absl::Time done;
    const absl::Time now = MonotonicClock()->Now();
    {
      MutexLock lock(&mutex_);
      free_ = std::max(free_, now) + absl::Seconds(static_cast<double>(bytes) / bytes_per_second_);
      done = free_;
    }
    absl::SleepFor(done - now);
  }

 private:
  const double bytes_per_second_;
  Mutex mutex_;
  absl::Time free_ HF_GUARDED_BY(mutex_) = absl::InfinitePast();
};

class PacedTransport final : public Transport {
 public:
  PacedTransport(std::unique_ptr<Transport> transport, Wire* out, Wire* in)
      : transport_(std::move(transport)), out_(out), in_(in) {}

  absl::Status Send(const char* from, Bytes bytes) override {
    HF_RETURN_IF_ERROR(transport_->Send(from, bytes));
    out_->Carry(bytes);
    return absl::OkStatus();
  }
  absl::Status Receive(char* to, Bytes bytes) override {
    HF_RETURN_IF_ERROR(transport_->Receive(to, bytes));
    in_->Carry(bytes);
    return absl::OkStatus();
  }
  void Abort() override { transport_->Abort(); }

 private:
  const std::unique_ptr<Transport> transport_;
  Wire* const out_;
  Wire* const in_;
};

class TcpTransports final : public TransportMaker {
 public:
  explicit TcpTransports(double bytes_per_second) : out_(bytes_per_second), in_(bytes_per_second) {}
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
    return std::unique_ptr<Transport>(new PacedTransport(
        std::make_unique<TcpTransport>(control, std::move(progress)), &out_, &in_));
  }

 private:
  Wire out_;
  Wire in_;
};

}  // namespace

std::unique_ptr<TransportMaker> MakeTcpTransports(double bytes_per_second) {
  return std::make_unique<TcpTransports>(bytes_per_second);
}

}  // namespace hyperframes
