// What a lender calls of CUDA's driver, for GPUs of fake_gpus.h.
#include <cuda.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <string>

#include "agent/device/cuda/fake/fake_gpus.h"

namespace {

using hyperframes::FakeGpuCount;
using hyperframes::FakeGpusAre;

struct Allocation {
  int descriptor;
  int index;
};

std::mutex mutex;
std::map<CUmemGenericAllocationHandle, Allocation>& Allocations() {
  static auto& allocations = *new std::map<CUmemGenericAllocationHandle, Allocation>();
  return allocations;
}

// CUDA's order is the reverse of NVML's: who confuses the two lends another GPU's memory.
int IndexOf(CUdevice device) { return FakeGpuCount() - 1 - device; }

CUmemGenericAllocationHandle Remember(int descriptor, int index) {
  static CUmemGenericAllocationHandle next = 1;
  const std::lock_guard<std::mutex> lock(mutex);
  Allocations()[next] = {descriptor, index};
  return next++;
}

void LogContext(const char* function) {
  const char* const path = getenv("HYPERFRAMES_FAKE_LOG");
  if (path == nullptr) return;
  FILE* const log = fopen(path, "a");
  if (log == nullptr) return;
  fprintf(log, "%s by process %d\n", function, getpid());
  fclose(log);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) {
  if (FakeGpusAre("broken")) return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  return FakeGpuCount() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "a fake driver's error";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = FakeGpuCount();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  memset(uuid, 0, sizeof(*uuid));
  uuid->bytes[15] = static_cast<char>(hyperframes::FakeUuidByte(IndexOf(device)));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  snprintf(name, static_cast<size_t>(size),
           FakeGpusAre("partitioned") ? "Fake MIG 1g" : "Fake GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = hyperframes::kFakeTotalBytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const bool exports = attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
  *value = exports && FakeGpusAre("private") ? 0 : 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute, CUdevice, CUdevice) {
  *value = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  LogContext("cuDevicePrimaryCtxRetain");
  if (!FakeGpusAre("contexts")) return CUDA_ERROR_NOT_SUPPORTED;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  *context = reinterpret_cast<CUcontext>(static_cast<intptr_t>(device) + 1);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granule, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *granule = hyperframes::kFakeGranule;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long) {
  const int index = IndexOf(properties->location.id);
  if (bytes % hyperframes::kFakeGranule != 0) return CUDA_ERROR_INVALID_VALUE;
  if (static_cast<long long>(bytes) > hyperframes::FakeFreeBytes(index)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const int descriptor = memfd_create(hyperframes::FakeMemoryName(index).c_str(), MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *handle = Remember(descriptor, index);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType, unsigned long long) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Allocations().find(handle);
  if (found == Allocations().end()) return CUDA_ERROR_INVALID_HANDLE;
  const int copy = fcntl(found->second.descriptor, F_DUPFD, 0);
  memcpy(shareable, &copy, sizeof(copy));
  return copy < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType) {
  const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  char target[128] = "";
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  if (readlink(link.c_str(), target, sizeof(target) - 1) < 0) return CUDA_ERROR_INVALID_VALUE;
  for (int index = 0; index < FakeGpuCount(); ++index) {
    if ("/memfd:" + hyperframes::FakeMemoryName(index) + " (deleted)" != target) continue;
    *handle = Remember(fcntl(descriptor, F_DUPFD_CLOEXEC, 0), index);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Allocations().find(handle);
  if (found == Allocations().end()) return CUDA_ERROR_INVALID_HANDLE;
  memset(properties, 0, sizeof(*properties));
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = FakeGpuCount() - 1 - found->second.index;
  return CUDA_SUCCESS;
}

int hf_fake_descriptor(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Allocations().find(handle);
  return found == Allocations().end() ? -1 : found->second.descriptor;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Allocations().find(handle);
  if (found == Allocations().end()) return CUDA_ERROR_INVALID_HANDLE;
  close(found->second.descriptor);
  Allocations().erase(found);
  return CUDA_SUCCESS;
}

}  // extern "C"
