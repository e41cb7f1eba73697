// The driver with one more GPU, the twin: every device that is named is the real one, and what was
// made on the twin is remembered as the twin's.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "agent/device/cuda/twin/forwarded.h"
#include "agent/device/cuda/twin/twin_handles.h"
#include "agent/device/cuda/twin/twin_memory.h"

using hyperframes::RealDriver;

namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr CUdevice kReal = 0;  // Of the process, as the real driver counts.

// By this driver's ordinal: whether that device is the twin. Set by cuInit, before anything else.
std::vector<bool>& AreTwins() {
  static auto& are_twins = *new std::vector<bool>();
  return are_twins;
}

hyperframes::TwinHandles& Handles() {
  static auto& handles = *new hyperframes::TwinHandles();
  return handles;
}

bool Exists(CUdevice device) {
  return device >= 0 && device < static_cast<CUdevice>(AreTwins().size());
}
bool IsTwin(CUdevice device) { return Exists(device) && AreTwins()[static_cast<size_t>(device)]; }

CUdevice OrdinalOf(bool twin) {
  for (size_t at = 0; at < AreTwins().size(); ++at) {
    if (AreTwins()[at] == twin) return static_cast<CUdevice>(at);
  }
  return -1;  // Hidden.
}

// As the driver reads it: what stands behind an unknown name is hidden too.
std::vector<bool> Visible(const char* named, const std::string& uuid) {
  if (named == nullptr) return {false, true};
  const std::string uuids[] = {uuid, hyperframes::TwinUuid(uuid)};
  std::vector<bool> visible;
  std::istringstream list(named);
  for (std::string one; std::getline(list, one, ',');) {
    int found = -1;
    for (int twin = 0; twin < 2; ++twin) {
      const bool begins = one.size() > 4 && uuids[twin].rfind(one, 0) == 0;
      if (one == std::to_string(twin) || begins) found = twin;
    }
    if (found < 0) break;
    visible.push_back(found == 1);
  }
  return visible;
}

std::string Text(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char byte[4] = "";
    const bool parts = i == 4 || i == 6 || i == 8 || i == 10;
    snprintf(byte, sizeof(byte), parts ? "-%02x" : "%02x",
             static_cast<unsigned char>(uuid.bytes[i]));
    text += byte;
  }
  return text;
}

CUmemAllocationProp Physical(const CUmemAllocationProp& properties) {
  CUmemAllocationProp physical = properties;
  if (Exists(properties.location.id)) physical.location.id = kReal;
  return physical;
}

bool IsTwin(const CUmemAllocationProp& properties) {
  return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && IsTwin(properties.location.id);
}

// It has to see its GPU also where this process is to see the twin alone. Where somebody has
// started it already, as torch does, that is left as it is.
CUresult StartReal(unsigned flags) {
  int count = 0;
  if (RealDriver().cuDeviceGetCount(&count) == CUDA_SUCCESS) return CUDA_SUCCESS;
  const char* const set = getenv(kVisible);
  const std::string named = set == nullptr ? "" : set;
  setenv(kVisible, "0", /*overwrite=*/1);
  const CUresult started = RealDriver().cuInit(flags);
  if (set == nullptr) {
    unsetenv(kVisible);
  } else {
    setenv(kVisible, named.c_str(), /*overwrite=*/1);
  }
  return started;
}

size_t RealTotal() {
  size_t total = 0;
  return RealDriver().cuDeviceTotalMem(&total, kReal) == CUDA_SUCCESS ? total : 0;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  const char* const set = getenv(kVisible);
  const std::string named = set == nullptr ? "" : set;
  if (const CUresult started = StartReal(flags); started != CUDA_SUCCESS) return started;
  CUuuid uuid = {};
  if (const CUresult told = RealDriver().cuDeviceGetUuid(&uuid, kReal); told != CUDA_SUCCESS) {
    return told;
  }
  AreTwins() = Visible(set == nullptr ? nullptr : named.c_str(), Text(uuid));
  return AreTwins().empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  const CUresult result = RealDriver().cuDeviceGetCount(count);
  if (result == CUDA_SUCCESS) *count = static_cast<int>(AreTwins().size());
  return result;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  const CUresult result = RealDriver().cuDeviceGet(device, Exists(ordinal) ? kReal : ordinal + 2);
  if (result == CUDA_SUCCESS) *device = ordinal;
  return result;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  const CUresult result = RealDriver().cuDeviceGetUuid(uuid, kReal);
  if (result == CUDA_SUCCESS && IsTwin(device)) {
    uuid->bytes[0] = static_cast<char>(uuid->bytes[0] ^ hyperframes::kTwinMark);
  }
  return result;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  return RealDriver().cuDeviceGetName(name, size, kReal);
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  const CUresult result = RealDriver().cuDeviceTotalMem(bytes, kReal);
  if (result != CUDA_SUCCESS) return result;
  const size_t twins = hyperframes::TwinBytes(*bytes);
  *bytes = IsTwin(device) ? twins : *bytes - twins;
  return result;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  return RealDriver().cuDeviceGetAttribute(value, attribute, kReal);
}

CUresult cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  return RealDriver().cuDeviceGetPCIBusId(text, size, kReal);
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from,
                                 CUdevice to) {
  if (!Exists(from) || !Exists(to) || from == to) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  return RealDriver().cuDevicePrimaryCtxRetain(context, kReal);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  return RealDriver().cuDevicePrimaryCtxRelease(kReal);
}

CUresult cuMemGetAllocationGranularity(size_t* granule, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  if (!Exists(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  const CUmemAllocationProp physical = Physical(*properties);
  return RealDriver().cuMemGetAllocationGranularity(granule, &physical, option);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  if (!Exists(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  const CUmemAllocationProp physical = Physical(*properties);
  if (!IsTwin(*properties)) return RealDriver().cuMemCreate(handle, bytes, &physical, flags);
  const unsigned long long total = hyperframes::TwinBytes(RealTotal());
  const unsigned long long held = hyperframes::HeldTwinMemory();
  if (held > total || bytes > total - held) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = RealDriver().cuMemCreate(handle, bytes, &physical, flags);
  if (result != CUDA_SUCCESS) return result;
  const int note = hyperframes::HoldTwinMemory(bytes);
  if (note < 0) {
    RealDriver().cuMemRelease(*handle);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  Handles().Add(*handle, std::make_shared<hyperframes::TwinNote>(note));
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  const CUresult result = RealDriver().cuMemExportToShareableHandle(shareable, handle, type, flags);
  const std::shared_ptr<hyperframes::TwinNote> note = Handles().Find(handle);
  if (result != CUDA_SUCCESS || note == nullptr) return result;
  int memory = -1;
  memcpy(&memory, shareable, sizeof(memory));
  const int wrapped = hyperframes::WrapTwinDescriptor(memory, note->descriptor());
  close(memory);
  memcpy(shareable, &wrapped, sizeof(wrapped));
  return wrapped < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  const int wrapped = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  int memory = -1;
  std::shared_ptr<hyperframes::TwinNote> note;
  if (!hyperframes::UnwrapTwinDescriptor(wrapped, &memory, &note)) {
    return RealDriver().cuMemImportFromShareableHandle(handle, shareable, type);
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  void* const as_pointer = reinterpret_cast<void*>(static_cast<intptr_t>(memory));
  const CUresult result = RealDriver().cuMemImportFromShareableHandle(handle, as_pointer, type);
  close(memory);
  if (result == CUDA_SUCCESS) Handles().Add(*handle, std::move(note));
  return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  const CUresult result = RealDriver().cuMemGetAllocationPropertiesFromHandle(properties, handle);
  if (result == CUDA_SUCCESS)
    properties->location.id = OrdinalOf(Handles().Find(handle) != nullptr);
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const CUresult result = RealDriver().cuMemRelease(handle);
  if (result == CUDA_SUCCESS) Handles().Release(handle);
  return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const CUresult result = RealDriver().cuMemMap(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) Handles().Map(address, handle);
  return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  const CUresult result = RealDriver().cuMemUnmap(address, bytes);
  if (result == CUDA_SUCCESS) Handles().Unmap(address, bytes);
  return result;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  std::vector<CUmemAccessDesc> physical;
  for (size_t i = 0; i < count; ++i) {
    if (!Exists(access[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (i > 0) continue;  // They are all the one GPU.
    physical.push_back(access[i]);
    physical.back().location.id = kReal;
  }
  return RealDriver().cuMemSetAccess(address, bytes, physical.data(), physical.size());
}

}  // extern "C"
