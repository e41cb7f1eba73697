#include "agent/device/cuda/cuda_memory.h"

#include <fcntl.h>
#include <glog/logging.h>

#include <cstdint>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr CUmemAllocationHandleType kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUmemAllocationProp Properties(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = kDescriptor;
  return properties;
}

// The driver takes a descriptor as a pointer.
CUresult Import(const CudaDriver& driver, int descriptor, CUmemGenericAllocationHandle* handle) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  void* const as_pointer = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  return driver.cuMemImportFromShareableHandle(handle, as_pointer, kDescriptor);
}

// The driver has no code of its own for a descriptor that is something else.
absl::Status NotLent(const CudaDriver& driver, CUresult result, int descriptor,
                     const std::string& subject) {
  absl::Status why = driver.Check(result, "cuMemImportFromShareableHandle", subject);
  if (why.code() == absl::StatusCode::kResourceExhausted) return why;
  return absl::InvalidArgumentError(
      absl::StrCat("descriptor ", descriptor,
                   " is no memory that a GPU of this machine has lent: take the one that came with "
                   "the lease; ",
                   why.message()));
}

// Lets the context's GPU, and no other, use a mapping of lent memory. What is left to refuse here
// is the way to the lender.
absl::Status Allow(const CudaContext& context, CUdeviceptr address, size_t size,
                   const std::string& subject) {
  const CudaDriver& driver = context.driver();
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = context.device();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  absl::Status why = driver.Check(driver.cuMemSetAccess(address, size, &access, /*count=*/1),
                                  "cuMemSetAccess", subject);
  if (why.ok() || absl::IsResourceExhausted(why) || absl::IsInternal(why)) return why;
  return absl::FailedPreconditionError(
      absl::StrCat("GPU ", context.uuid(), " cannot reach the lender's memory: see nvidia-smi ",
                   "topo -p2p rw; ", why.message()));
}

}  // namespace

absl::StatusOr<Bytes> InGranules(const CudaDriver& driver, CUdevice device, Bytes bytes) {
  const CUmemAllocationProp properties = Properties(device);
  size_t granule = 0;
  HF_CUDA_RETURN_IF_ERROR(driver, absl::StrCat("device ", device), cuMemGetAllocationGranularity,
                          &granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  const Bytes granules = (bytes + static_cast<Bytes>(granule) - 1) / static_cast<Bytes>(granule);
  return granules * static_cast<Bytes>(granule);
}

absl::StatusOr<std::unique_ptr<Memory>> ExportedMemory::Create(const CudaDriver* driver,
                                                               CUdevice device,
                                                               const std::string& uuid,
                                                               Bytes bytes) {
  HF_ASSIGN_OR_RETURN(const Bytes whole, InGranules(*driver, device, bytes));
  const std::string subject = absl::StrCat(FormatBytes(bytes), " on ", uuid);
  const CUmemAllocationProp properties = Properties(device);
  CUmemGenericAllocationHandle handle = 0;
  HF_CUDA_RETURN_IF_ERROR(*driver, subject, cuMemCreate, &handle, static_cast<size_t>(whole),
                          &properties, /*flags=*/0);
  auto release = absl::MakeCleanup([&] { driver->cuMemRelease(handle); });
  int descriptor = -1;
  HF_CUDA_RETURN_IF_ERROR(*driver, subject, cuMemExportToShareableHandle, &descriptor, handle,
                          kDescriptor, /*flags=*/0);
  UniqueFd owned(descriptor);
  // A program that the training process starts must not keep lent memory alive.
  if (fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("fcntl(FD_CLOEXEC) of ", subject, " failed"));
  }
  std::move(release).Cancel();
  return std::unique_ptr<Memory>(new ExportedMemory(driver, handle, std::move(owned), bytes));
}

absl::StatusOr<std::unique_ptr<Memory>> ExportedMemory::Adopt(const CudaDriver* driver,
                                                              CUdevice device,
                                                              const std::string& uuid,
                                                              int descriptor, Bytes bytes) {
  UniqueFd owned(descriptor);
  const std::string subject = absl::StrCat(FormatBytes(bytes), " on ", uuid);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult imported = Import(*driver, descriptor, &handle);
  if (imported != CUDA_SUCCESS) return NotLent(*driver, imported, descriptor, subject);
  auto release = absl::MakeCleanup([&] { driver->cuMemRelease(handle); });
  CUmemAllocationProp properties = {};
  HF_CUDA_RETURN_IF_ERROR(*driver, subject, cuMemGetAllocationPropertiesFromHandle, &properties,
                          handle);
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties.location.id != device) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", descriptor,
                                                   " is memory of another device than ", uuid,
                                                   ": hand back the lease's own"));
  }
  std::move(release).Cancel();
  return std::unique_ptr<Memory>(new ExportedMemory(driver, handle, std::move(owned), bytes));
}

ExportedMemory::~ExportedMemory() { driver_->cuMemRelease(handle_); }

absl::StatusOr<std::unique_ptr<Memory>> MappedMemory::Map(
    std::shared_ptr<const CudaContext> context, int descriptor, Bytes bytes) {
  UniqueFd owned(descriptor);
  if (descriptor < 0 || bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot map ", bytes, " bytes of descriptor ", descriptor, " for ",
                     context->uuid(), ": ask its lender for the lease's size and descriptor"));
  }
  const CudaDriver& driver = context->driver();
  const CurrentContext current(*context);
  HF_ASSIGN_OR_RETURN(const Bytes whole, InGranules(driver, context->device(), bytes));
  const std::string subject = absl::StrCat(FormatBytes(bytes), " for ", context->uuid());

  CUmemGenericAllocationHandle handle = 0;
  const CUresult imported = Import(driver, descriptor, &handle);
  if (imported != CUDA_SUCCESS) return NotLent(driver, imported, descriptor, subject);
  // The mapping holds the memory from here on; the handle is only needed to make it.
  auto release = absl::MakeCleanup([&] { driver.cuMemRelease(handle); });
  const auto size = static_cast<size_t>(whole);
  CUdeviceptr address = 0;
  HF_CUDA_RETURN_IF_ERROR(driver, subject, cuMemAddressReserve, &address, size, /*alignment=*/0,
                          /*addr=*/0, /*flags=*/0);
  auto free_address = absl::MakeCleanup([&] { driver.cuMemAddressFree(address, size); });
  HF_CUDA_RETURN_IF_ERROR(driver, subject, cuMemMap, address, size, /*offset=*/0, handle,
                          /*flags=*/0);
  auto unmap = absl::MakeCleanup([&] { driver.cuMemUnmap(address, size); });
  HF_RETURN_IF_ERROR(Allow(*context, address, size, subject));
  std::move(unmap).Cancel();
  std::move(free_address).Cancel();
  return std::unique_ptr<Memory>(
      new MappedMemory(std::move(context), address, whole, std::move(owned), bytes));
}

MappedMemory::~MappedMemory() {
  const CudaDriver& driver = context_->driver();
  const CurrentContext current(*context_);
  const auto size = static_cast<size_t>(reserved_);
  const absl::Status unmapped =
      driver.Check(driver.cuMemUnmap(address_, size), "cuMemUnmap", context_->uuid());
  if (!unmapped.ok()) LOG(WARNING) << "lent memory stays mapped: " << unmapped;
  driver.cuMemAddressFree(address_, size);
}

}  // namespace hyperframes
