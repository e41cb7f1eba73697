#include "agent/device/cuda/cuda_machine.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/device/cuda/cuda_device.h"
#include "agent/device/cuda/nvml.h"
#include "agent/device/host/host_machine.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

absl::Status CheckOptions(const CudaMachineOptions& options) {
  if (options.host_bytes < -1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host_bytes is ", options.host_bytes, "; give 0 for none, or -1 for half of what is free"));
  }
  if (options.reserve_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("reserve_bytes is ", options.reserve_bytes, "; it must be 0 or more"));
  }
  return absl::OkStatus();
}

class Machine final : public CudaMachine {
 public:
  Machine(const CudaDriver* driver, CudaMachineOptions options)
      : driver_(driver), options_(std::move(options)) {}

  absl::Status Fill() {
    int count = 0;
    HF_CUDA_RETURN_IF_ERROR(*driver_, "", cuDeviceGetCount, &count);
    if (count == 0) {
      return absl::NotFoundError(
          "CUDA sees no GPU in this process: look at nvidia-smi -L and CUDA_VISIBLE_DEVICES");
    }
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      HF_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> gpu,
                          CudaDevice::Create(driver_, ordinal, options_.measure));
      gpus_.push_back(gpu.get());
      owned_.push_back(std::move(gpu));
    }
    if (const absl::StatusOr<const Nvml*> nvml = Nvml::Get(); nvml.ok()) {
      for (const NodeGpu& gpu : (*nvml)->List()) index_[gpu.uuid] = gpu.index;
    }
    HostDeviceOptions host;
    host.uuid = absl::StrCat("host:", options_.node);
    host.total_bytes = options_.host_bytes >= 0 ? options_.host_bytes : HalfOfAvailableMemory();
    HF_ASSIGN_OR_RETURN(host_, HostDevice::Create(std::move(host)));
    return absl::OkStatus();
  }

  std::string backend() const override { return "cuda"; }
  const std::vector<Device*>& gpus() const override { return gpus_; }
  Device* host() const override { return host_.get(); }

  int IndexOf(const Device& gpu) const override {
    const auto found = index_.find(gpu.description().uuid);
    return found != index_.end() ? found->second : OrdinalOf(gpu);
  }

  absl::Status CheckUsable(const Device& gpu) const override {
    return static_cast<const CudaDevice&>(gpu).lending();
  }

  std::map<std::string, std::string> WorkerVariables(
      const Device& own, const std::vector<std::string>& visible) const override {
    return CudaWorkerVariables(own, visible);
  }

  Bytes LendableBytes(const Device& gpu) const override {
    return std::max<Bytes>(0, gpu.free_bytes() - options_.reserve_bytes);
  }

  bool CanReach(const Device& from, const Device& to) const override {
    int supported = 0;
    return driver_->cuDeviceGetP2PAttribute(&supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
                                            OrdinalOf(from), OrdinalOf(to)) == CUDA_SUCCESS &&
           supported != 0;
  }

  std::string LinkKind(const Device& from, const Device& to) const override {
    const absl::StatusOr<const Nvml*> nvml = Nvml::Get();
    if (!nvml.ok()) return "pcie";
    for (const Device* gpu : {&from, &to}) {
      const absl::StatusOr<NodeGpu> found = (*nvml)->Find(gpu->description().uuid);
      if (!found.ok() || found->active_nvlinks == 0) return "pcie";
    }
    return (*nvml)->AreJoinedByNvLink(from.description().uuid, to.description().uuid) ? "nvlink"
                                                                                      : "pcie";
  }

  std::vector<std::string> HiddenGpus() const override {
    std::vector<std::string> hidden;
    const absl::StatusOr<const Nvml*> nvml = Nvml::Get();
    if (!nvml.ok()) return hidden;
    for (const NodeGpu& on_node : (*nvml)->List()) {
      const bool visible = std::any_of(gpus_.begin(), gpus_.end(), [&](const Device* gpu) {
        return gpu->description().uuid == on_node.uuid;
      });
      if (!visible) hidden.push_back(on_node.uuid);
    }
    return hidden;
  }

 private:
  static CUdevice OrdinalOf(const Device& gpu) {
    return static_cast<const CudaDevice&>(gpu).device();
  }

  const CudaDriver* const driver_;
  const CudaMachineOptions options_;
  std::vector<std::unique_ptr<CudaDevice>> owned_;
  std::vector<Device*> gpus_;
  std::map<std::string, int> index_;  // By UUID, as NVML counts.
  std::unique_ptr<HostDevice> host_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMachine>> CudaMachine::Open(const CudaMachineOptions& options) {
  HF_RETURN_IF_ERROR(CheckOptions(options));
  HF_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Get());
  auto machine = std::make_unique<Machine>(driver, options);
  HF_RETURN_IF_ERROR(machine->Fill());
  return std::unique_ptr<CudaMachine>(std::move(machine));
}

}  // namespace hyperframes
