#include "agent/device/cuda/cuda_device.h"

#include <fcntl.h>

#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/device/cuda/cuda_memory.h"
#include "agent/device/cuda/cuda_stream.h"
#include "agent/device/cuda/nvml.h"
#include "agent/device/cuda/pinned_memory.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kPartitionMark = " MIG ";  // "NVIDIA H200 MIG 1g.18gb".

// "GPU-8-4-4-4-12", as NVML and nvidia-smi write it; "MIG-..." for a partition.
std::string FormatUuid(const CUuuid& uuid, bool is_partition) {
  std::string text = is_partition ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

// The node whose memory is nearest to the GPU; -1 where the kernel does not say.
int NumaNodeOf(const CudaDriver& driver, CUdevice device) {
  char bus_id[32] = "";
  if (driver.cuDeviceGetPCIBusId(bus_id, sizeof(bus_id), device) != CUDA_SUCCESS) return -1;
  const std::string path =
      absl::StrCat("/sys/bus/pci/devices/", absl::AsciiStrToLower(bus_id), "/numa_node");
  std::ifstream file(path);
  int node = -1;
  return file >> node ? node : -1;
}

absl::Status CheckLending(const CudaDriver& driver, CUdevice device,
                          const DeviceDescription& description, bool is_partition) {
  const std::string who = absl::StrCat("GPU ", description.uuid, " (", description.name, ")");
  if (is_partition) {
    return absl::UnimplementedError(
        absl::StrCat(who, " is a MIG partition, whose memory no other process or GPU can map: ",
                     "switch MIG off (nvidia-smi -mig 0), or run without HyperFrames there "
                     "(HYPERFRAMES_MODE=off)"));
  }
  for (const CUdevice_attribute needed :
       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int supported = 0;
    HF_CUDA_RETURN_IF_ERROR(driver, who, cuDeviceGetAttribute, &supported, needed, device);
    if (supported != 0) continue;
    return absl::UnimplementedError(
        absl::StrCat(who, " cannot export memory by descriptor (attribute ", needed,
                     " is 0; some virtual GPUs are so): pass the whole GPU through to this "
                     "machine, or run without HyperFrames there (HYPERFRAMES_MODE=off)"));
  }
  return absl::OkStatus();
}

// Host memory that was lent can be sealed, which no other descriptor can.
bool IsLentHostMemory(int descriptor) {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && seals != F_SEAL_SEAL;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const CudaDriver* driver,
                                                               int ordinal, bool measure) {
  const std::string subject = absl::StrCat("CUDA device ", ordinal);
  CUdevice device = 0;
  CUuuid uuid = {};
  char name[96] = "";
  size_t total = 0;
  HF_CUDA_RETURN_IF_ERROR(*driver, subject, cuDeviceGet, &device, ordinal);
  HF_CUDA_RETURN_IF_ERROR(*driver, subject, cuDeviceGetUuid, &uuid, device);
  HF_CUDA_RETURN_IF_ERROR(*driver, subject, cuDeviceGetName, name, sizeof(name) - 1, device);
  HF_CUDA_RETURN_IF_ERROR(*driver, subject, cuDeviceTotalMem, &total, device);
  const bool is_partition = absl::StrContains(name, kPartitionMark);
  DeviceDescription description{FormatUuid(uuid, is_partition), name, "cuda",
                                static_cast<Bytes>(total)};
  absl::Status lending = CheckLending(*driver, device, description, is_partition);
  return std::unique_ptr<CudaDevice>(new CudaDevice(driver, device, std::move(description),
                                                    std::move(lending), NumaNodeOf(*driver, device),
                                                    measure));
}

absl::StatusOr<CudaEventPool*> CudaDevice::Events() {
  MutexLock lock(&mutex_);
  if (events_ == nullptr) {
    HF_ASSIGN_OR_RETURN(std::shared_ptr<const CudaContext> context,
                        CudaContext::Retain(driver_, device_, description_.uuid));
    if (measure_) waits_ = std::make_unique<IntervalTimer>(context);
    events_ = std::make_shared<CudaEventPool>(std::move(context));
  }
  return events_.get();
}

absl::StatusOr<std::unique_ptr<Memory>> CudaDevice::Allocate(Bytes bytes) {
  if (bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot allocate ", bytes, " bytes on ",
                                                   description_.uuid, ": ask for at least 1"));
  }
  HF_RETURN_IF_ERROR(lending_);
  absl::StatusOr<std::unique_ptr<Memory>> memory =
      ExportedMemory::Create(driver_, device_, description_.uuid, bytes);
  if (memory.status().code() != absl::StatusCode::kResourceExhausted) return memory;
  return absl::ResourceExhaustedError(absl::StrCat(
      "device ", description_.uuid, ": ", FormatBytes(bytes), " (", bytes, " bytes) asked, ",
      FormatBytes(free_bytes()), " free of ", FormatBytes(description_.total_bytes)));
}

absl::StatusOr<std::unique_ptr<Memory>> CudaDevice::Map(int descriptor, Bytes bytes) {
  absl::StatusOr<CudaEventPool*> events = Events();
  if (!events.ok()) {
    UniqueFd(descriptor).reset();
    return events.status();
  }
  const std::shared_ptr<const CudaContext>& context = (*events)->shared_context();
  if (IsLentHostMemory(descriptor))
    return PinnedMemory::Map(context, descriptor, bytes, numa_node_);
  return MappedMemory::Map(context, descriptor, bytes);
}

absl::StatusOr<std::unique_ptr<Memory>> CudaDevice::Adopt(int descriptor, Bytes bytes) {
  return ExportedMemory::Adopt(driver_, device_, description_.uuid, descriptor, bytes);
}

absl::StatusOr<std::unique_ptr<Stream>> CudaDevice::CreateStream(Direction /*direction*/,
                                                                 Tier tier) {
  if (tier == Tier::kKeep) {
    return absl::InvalidArgumentError("tier keep has no stream: kept storages are not copied");
  }
  HF_ASSIGN_OR_RETURN(CudaEventPool * events, Events());
  HF_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream,
                      CudaStream::Create(events->shared_from_this(), measure_));
  return std::unique_ptr<Stream>(std::move(stream));
}

absl::StatusOr<std::shared_ptr<const Event>> CudaDevice::RecordCompute(void* compute_stream) {
  HF_ASSIGN_OR_RETURN(CudaEventPool * events, Events());
  HF_ASSIGN_OR_RETURN(std::shared_ptr<const CudaEvent> event,
                      events->Record(static_cast<CUstream>(compute_stream)));
  return std::shared_ptr<const Event>(std::move(event));
}

absl::Status CudaDevice::ComputeWait(void* compute_stream, const Event& event) {
  HF_ASSIGN_OR_RETURN(CudaEventPool * events, Events());
  CUevent cuda_event = nullptr;
  HF_RETURN_IF_ERROR(CudaEventOf(event, &cuda_event));
  if (cuda_event == nullptr) return absl::OkStatus();
  const auto stream = static_cast<CUstream>(compute_stream);
  IntervalTimer* waits = nullptr;
  if (measure_) {
    MutexLock lock(&mutex_);
    waits = waits_.get();
  }
  const CurrentContext current(events->context());
  const CUevent started = waits != nullptr ? waits->Start(stream) : nullptr;
  HF_CUDA_RETURN_IF_ERROR(*driver_, description_.uuid, cuStreamWaitEvent, stream, cuda_event,
                          CU_EVENT_WAIT_DEFAULT);
  if (waits != nullptr) waits->Stop(started, stream);
  return absl::OkStatus();
}

absl::Duration CudaDevice::measured_exposed_wait() const {
  MutexLock lock(&mutex_);
  return waits_ != nullptr ? waits_->total() : absl::ZeroDuration();
}

Bytes CudaDevice::free_bytes() const {
  const absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) return description_.total_bytes;
  const absl::StatusOr<Bytes> free = (*nvml)->FreeBytes(description_.uuid);
  return free.ok() ? *free : description_.total_bytes;
}

}  // namespace hyperframes
