#include <thread>
#include <utility>
#include <vector>

#include "agent/transfer/tcp/tcp_socket.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "tests/bench/plain_transfer.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);

class PlainTcp final : public PlainTransfer {
 public:
  PlainTcp(std::unique_ptr<TcpSocket> near, std::unique_ptr<TcpSocket> far)
      : near_(std::move(near)), far_(std::move(far)) {}

  absl::StatusOr<PlainRound> Measure(Bytes bytes, int count) override {
    std::vector<char> near_bytes(static_cast<size_t>(bytes), 'n');
    std::vector<char> far_bytes(static_cast<size_t>(bytes), 'f');
    absl::Status far_status;
    std::thread far([&] { far_status = Serve(far_bytes.data(), bytes, count); });
    absl::StatusOr<PlainRound> round = Drive(near_bytes.data(), bytes, count);
    if (!round.ok()) near_->Abort();
    far.join();
    HF_RETURN_IF_ERROR(far_status);
    return round;
  }

 private:
  absl::Status Serve(char* data, Bytes bytes, int count) {
    for (int i = 0; i < count; ++i) HF_RETURN_IF_ERROR(far_->Read(data, bytes));
    HF_RETURN_IF_ERROR(far_->Write("a", 1));
    for (int i = 0; i < count; ++i) HF_RETURN_IF_ERROR(far_->Write(data, bytes));
    return absl::OkStatus();
  }
  absl::StatusOr<PlainRound> Drive(char* data, Bytes bytes, int count) {
    char acknowledged = 0;
    const absl::Time started = MonotonicClock()->Now();
    for (int i = 0; i < count; ++i) HF_RETURN_IF_ERROR(near_->Write(data, bytes));
    HF_RETURN_IF_ERROR(near_->Read(&acknowledged, 1));
    const absl::Time out = MonotonicClock()->Now();
    for (int i = 0; i < count; ++i) HF_RETURN_IF_ERROR(near_->Read(data, bytes));
    const absl::Time back = MonotonicClock()->Now();
    return PlainRound{absl::ToDoubleSeconds(out - started), absl::ToDoubleSeconds(back - out)};
  }

  const std::unique_ptr<TcpSocket> near_;
  const std::unique_ptr<TcpSocket> far_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PlainTransfer>> StartPlainTcp() {
  HF_ASSIGN_OR_RETURN(const auto listener, TcpListener::Listen({"127.0.0.1", 0}));
  HF_ASSIGN_OR_RETURN(auto near, TcpSocket::Connect(listener->address(), kDeadline));
  std::unique_ptr<TcpSocket> far = listener->Accept(kDeadline, kDeadline);
  if (far == nullptr) return absl::UnavailableError("a plain TCP connection was not accepted");
  return std::unique_ptr<PlainTransfer>(new PlainTcp(std::move(near), std::move(far)));
}

}  // namespace hyperframes
