#include <stdlib.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/device/cuda/cuda_context.h"
#include "agent/device/cuda/cuda_device.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/nccl/nccl_library.h"
#include "agent/transfer/nccl/nccl_transport.h"
#include "agent/transfer/nccl/transfer_backend.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

class NcclTransports final : public TransportMaker {
 public:
  NcclTransports(std::unique_ptr<NcclLibrary> library, std::shared_ptr<const CudaContext> context,
                 absl::Duration deadline)
      : library_(std::move(library)), context_(std::move(context)), deadline_(deadline) {}

  PeerTransport kind() const override { return PeerTransport::kNccl; }

  absl::Status PrepareHello(PeerHello* hello) override {
    const CurrentContext current(*context_);
    NcclId id;
    HF_RETURN_IF_ERROR(
        library_->Check(library_->get_unique_id(&id), "ncclGetUniqueId", /*comm=*/nullptr));
    static_assert(sizeof(id) == sizeof(hello->nccl_id), "the hello has room for NCCL's id");
    std::memcpy(hello->nccl_id, &id, sizeof(id));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Transport>> Make(const PeerHello& hello, int rank,
                                                  TcpSocket* /*control*/,
                                                  std::function<void()> /*progress*/) override {
    if (hello.transport != static_cast<uint16_t>(PeerTransport::kNccl)) {
      return absl::UnimplementedError(
          "this hftransfer moves bytes of a GPU, by NCCL, and its peer those of host memory, by "
          "TCP: both nodes need the same backend");
    }
    NcclId id;
    std::memcpy(&id, hello.nccl_id, sizeof(id));
    return NcclTransport::Create(library_.get(), context_, id, rank, deadline_);
  }

 private:
  const std::unique_ptr<NcclLibrary> library_;
  const std::shared_ptr<const CudaContext> context_;
  const absl::Duration deadline_;
};

class CudaBackend final : public TransferBackend {
 public:
  CudaBackend(std::unique_ptr<CudaMachine> machine, Device* device,
              std::unique_ptr<TransportMaker> transports)
      : machine_(std::move(machine)), device_(device), transports_(std::move(transports)) {}
  Device* device() override { return device_; }
  TransportMaker* transports() override { return transports_.get(); }

 private:
  const std::unique_ptr<CudaMachine> machine_;
  Device* const device_;
  const std::unique_ptr<TransportMaker> transports_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransferBackend>> OpenCudaBackend(
    const TransferBackendOptions& options) {
  // What NCCL sends is neither encrypted nor checked for who sends it: whoever lets it out of this
  // machine says so, by naming the interface of a network that can be trusted.
  setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  CudaMachineOptions machine_options;
  machine_options.host_bytes = 0;
  HF_ASSIGN_OR_RETURN(auto machine, CudaMachine::Open(machine_options));
  for (Device* gpu : machine->gpus()) {
    if (gpu->description().uuid != options.gpu) continue;
    HF_ASSIGN_OR_RETURN(auto library, NcclLibrary::Open(options.nccl_library, options.nccl_folder));
    HF_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Get());
    HF_ASSIGN_OR_RETURN(auto context,
                        CudaContext::Retain(driver, static_cast<CudaDevice*>(gpu)->device(),
                                            gpu->description().uuid));
    auto transports =
        std::make_unique<NcclTransports>(std::move(library), std::move(context), options.deadline);
    return std::unique_ptr<TransferBackend>(
        new CudaBackend(std::move(machine), gpu, std::move(transports)));
  }
  return absl::NotFoundError(absl::StrCat("there is no GPU ", options.gpu.substr(0, 64),
                                          " in this process: look at nvidia-smi -L"));
}

}  // namespace hyperframes
