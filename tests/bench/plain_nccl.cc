#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/device/borrowed_memory.h"
#include "agent/device/cuda/cuda_context.h"
#include "agent/device/cuda/cuda_device.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/nccl/nccl_library.h"
#include "agent/transfer/two_nodes.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "tests/bench/plain_transfer.h"

namespace hyperframes {
namespace {

struct Order {  // From rank 0 to rank 1, over their socket.
  int64_t bytes = 0;
  int64_t count = 0;
};

// One rank: a blocking communicator, a stream and a buffer.
class Rank {
 public:
  static absl::StatusOr<std::unique_ptr<Rank>> Open(const std::string& library,
                                                    const std::string& gpu, Bytes most_bytes) {
    auto rank = std::make_unique<Rank>();
    CudaMachineOptions options;
    options.host_bytes = 0;
    HF_ASSIGN_OR_RETURN(rank->machine_, CudaMachine::Open(options));
    HF_ASSIGN_OR_RETURN(rank->nccl_, NcclLibrary::Open(library, ""));
    HF_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Get());
    for (Device* device : rank->machine_->gpus()) {
      if (device->description().uuid != gpu) continue;
      HF_ASSIGN_OR_RETURN(
          rank->context_,
          CudaContext::Retain(driver, static_cast<CudaDevice*>(device)->device(), gpu));
      HF_ASSIGN_OR_RETURN(rank->buffer_, BorrowMemory(device, device, most_bytes));
      const CurrentContext current(*rank->context_);
      HF_CUDA_RETURN_IF_ERROR(*driver, gpu, cuStreamCreate, &rank->stream_, CU_STREAM_NON_BLOCKING);
      return rank;
    }
    return absl::NotFoundError(absl::StrCat("there is no GPU ", gpu));
  }

  absl::StatusOr<NcclId> NewId() {
    NcclId id;
    HF_RETURN_IF_ERROR(nccl_->Check(nccl_->get_unique_id(&id), "ncclGetUniqueId", nullptr));
    return id;
  }
  absl::Status Join(const NcclId& id, int rank) {
    const CurrentContext current(*context_);
    NcclConfig config;
    config.blocking = 1;
    peer_ = 1 - rank;
    return nccl_->Check(nccl_->comm_init_rank_config(&comm_, 2, id, rank, &config),
                        "ncclCommInitRankConfig", nullptr);
  }
  absl::Status Send(Bytes bytes, int64_t count) { return Queue(true, bytes, count); }
  absl::Status Receive(Bytes bytes, int64_t count) { return Queue(false, bytes, count); }
  absl::Status Finish() {
    const CurrentContext current(*context_);
    return context_->driver().Check(context_->driver().cuStreamSynchronize(stream_),
                                    "cuStreamSynchronize", context_->uuid());
  }

 private:
  absl::Status Queue(bool sends, Bytes bytes, int64_t count) {
    const CurrentContext current(*context_);
    auto* const stream = reinterpret_cast<NcclStream*>(stream_);
    for (int64_t i = 0; i < count; ++i) {
      const NcclResult queued = sends ? nccl_->send(buffer_->data(), static_cast<size_t>(bytes),
                                                    kNcclBytes, peer_, comm_, stream)
                                      : nccl_->recv(buffer_->data(), static_cast<size_t>(bytes),
                                                    kNcclBytes, peer_, comm_, stream);
      HF_RETURN_IF_ERROR(nccl_->Check(queued, sends ? "ncclSend" : "ncclRecv", comm_));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<CudaMachine> machine_;
  std::unique_ptr<NcclLibrary> nccl_;
  std::shared_ptr<const CudaContext> context_;
  std::unique_ptr<Memory> buffer_;
  CUstream stream_ = nullptr;  // Both live as long as the process.
  NcclComm* comm_ = nullptr;
  int peer_ = 0;
};

class PlainNccl final : public PlainTransfer {
 public:
  PlainNccl(std::unique_ptr<Rank> rank, std::unique_ptr<ChildProgram> peer, UniqueFd socket)
      : rank_(std::move(rank)), peer_(std::move(peer)), socket_(std::move(socket)) {}

  absl::StatusOr<PlainRound> Measure(Bytes bytes, int count) override {
    const Order order = {bytes, count};
    if (write(socket_.get(), &order, sizeof(order)) != sizeof(order)) {
      return absl::UnavailableError("the plain peer has ended");
    }
    const absl::Time started = MonotonicClock()->Now();
    HF_RETURN_IF_ERROR(rank_->Send(bytes, count));
    HF_RETURN_IF_ERROR(rank_->Receive(1, 1));  // It has everything.
    HF_RETURN_IF_ERROR(rank_->Finish());
    const absl::Time out = MonotonicClock()->Now();
    HF_RETURN_IF_ERROR(rank_->Receive(bytes, count));
    HF_RETURN_IF_ERROR(rank_->Finish());
    const absl::Time back = MonotonicClock()->Now();
    return PlainRound{absl::ToDoubleSeconds(out - started), absl::ToDoubleSeconds(back - out)};
  }

 private:
  const std::unique_ptr<Rank> rank_;
  const std::unique_ptr<ChildProgram> peer_;
  const UniqueFd socket_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PlainTransfer>> StartPlainNccl(const PlainNcclOptions& options) {
  setenv("NCCL_HOSTID", "near", /*overwrite=*/1);
  setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);  // As hftransfer does.
  HF_ASSIGN_OR_RETURN(auto rank,
                      Rank::Open(options.nccl_library, options.near_gpu, options.most_bytes));
  HF_ASSIGN_OR_RETURN(const NcclId id, rank->NewId());
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::InternalError("no socket pair");
  }
  UniqueFd socket(ends[0]);
  const UniqueFd theirs(ends[1]);
  HF_ASSIGN_OR_RETURN(
      auto peer,
      ChildProgram::Start({options.self, "--plain-peer",
                           absl::BytesToHexString(absl::string_view(id.internal, sizeof(id))),
                           "--nccl-library", options.nccl_library, "--far-gpu", options.far_gpu,
                           "--most-bytes", absl::StrCat(options.most_bytes)},
                          theirs.get()));
  HF_RETURN_IF_ERROR(rank->Join(id, /*rank=*/0));
  return std::unique_ptr<PlainTransfer>(
      new PlainNccl(std::move(rank), std::move(peer), std::move(socket)));
}

absl::Status RunPlainNcclPeer(const std::string& id_hex, const PlainNcclOptions& options) {
  const UniqueFd socket(3);
  setenv("NCCL_HOSTID", "far", /*overwrite=*/1);
  NcclId id;
  const std::string raw = absl::HexStringToBytes(id_hex);
  if (raw.size() != sizeof(id)) return absl::InvalidArgumentError("--plain-peer is no NCCL id");
  std::memcpy(&id, raw.data(), sizeof(id));
  HF_ASSIGN_OR_RETURN(auto rank,
                      Rank::Open(options.nccl_library, options.far_gpu, options.most_bytes));
  HF_RETURN_IF_ERROR(rank->Join(id, /*rank=*/1));
  Order order;
  while (read(socket.get(), &order, sizeof(order)) == sizeof(order)) {
    HF_RETURN_IF_ERROR(rank->Receive(order.bytes, order.count));
    HF_RETURN_IF_ERROR(rank->Send(1, 1));
    HF_RETURN_IF_ERROR(rank->Send(order.bytes, order.count));
    HF_RETURN_IF_ERROR(rank->Finish());
  }
  return absl::OkStatus();
}

}  // namespace hyperframes
