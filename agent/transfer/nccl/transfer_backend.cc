#include "agent/transfer/nccl/transfer_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/device/host/host_device.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

class HostBackend final : public TransferBackend {
 public:
  HostBackend(std::unique_ptr<HostDevice> device, Bytes bandwidth)
      : device_(std::move(device)),
        transports_(MakeTcpTransports(static_cast<double>(bandwidth))) {}
  Device* device() override { return device_.get(); }
  TransportMaker* transports() override { return transports_.get(); }

 private:
  const std::unique_ptr<HostDevice> device_;
  const std::unique_ptr<TransportMaker> transports_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransferBackend>> TransferBackend::Open(
    const TransferBackendOptions& options) {
  if (options.backend == "cuda") return OpenCudaBackend(options);
  if (options.backend != "host") {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no backend \"", options.backend.substr(0, 64), "\"; there are host and cuda"));
  }
  HostDeviceOptions device;
  device.uuid = options.gpu;
  HF_ASSIGN_OR_RETURN(auto opened, HostDevice::Create(std::move(device)));
  return std::unique_ptr<TransferBackend>(new HostBackend(std::move(opened), options.bandwidth));
}

}  // namespace hyperframes
