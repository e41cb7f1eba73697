// Memory of the fake driver: allocations and their descriptors, mappings, pinned ranges. What the
// real driver refuses is refused here: sizes that are no granules, parts of mappings, access that
// was not granted to the very device that copies.
#include "agent/device/cuda/fake/fake_memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "agent/device/cuda/fake/fake_contexts.h"
#include "agent/device/cuda/fake/fake_gpus.h"

namespace {

using hyperframes::FakeRange;
using hyperframes::kFakeGranule;

struct Allocation {
  int descriptor;
  int index;
  bool may_export;
};

struct Mapping {
  size_t bytes = 0;
  int descriptor = -1;  // Its own: a mapping keeps memory alive when every handle is gone.
  int index = -1;       // Of the GPU whose memory it is.
  std::set<CUdevice> access;
  std::shared_ptr<FakeRange> range = std::make_shared<FakeRange>();
};

struct Reservation {
  size_t bytes = 0;
  std::map<CUdeviceptr, Mapping> mappings;
};

struct Pinned {
  size_t bytes = 0;
  bool ours = false;  // Made by cuMemHostAlloc.
  std::shared_ptr<FakeRange> range = std::make_shared<FakeRange>();
};

struct State {
  std::mutex mutex;
  CUmemGenericAllocationHandle next = 1;
  std::map<CUmemGenericAllocationHandle, Allocation> allocations;
  std::map<CUdeviceptr, Reservation> reservations;
  std::map<CUdeviceptr, Pinned> pinned;
};

State& All() {
  static auto& state = *new State();
  return state;
}

// NOLINTNEXTLINE(performance-no-int-to-ptr)
void* PointerOf(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

bool InGranules(unsigned long long number) { return number % kFakeGranule == 0; }

CUmemGenericAllocationHandle Remember(int descriptor, int index, bool may_export) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  All().allocations[All().next] = {descriptor, index, may_export};
  return All().next++;
}

// The entry of `ranges` that holds `address`; end where none does.
template <typename Ranges>
auto Around(Ranges& ranges, CUdeviceptr address) {
  auto found = ranges.upper_bound(address);
  if (found == ranges.begin()) return ranges.end();
  --found;
  return address - found->first < found->second.bytes ? found : ranges.end();
}

CUresult Refuse(const CUmemAllocationProp& properties) {
  const bool exports = properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      (!exports && properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (hyperframes::IndexOfFakeGpu(properties.location.id) < 0) return CUDA_ERROR_INVALID_DEVICE;
  return exports && hyperframes::FakeGpusAre("private") ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

bool Overlaps(const State& state, CUdeviceptr begin, size_t bytes) {
  for (const auto& [at, pinned] : state.pinned) {
    if (begin < at + pinned.bytes && at < begin + bytes) return true;
  }
  return false;
}

CUresult Unpin(void* data, bool ours) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto found = All().pinned.find(reinterpret_cast<CUdeviceptr>(data));
  if (found == All().pinned.end() || found->second.ours != ours) {
    return ours ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  if (found->second.range.use_count() > 1) {
    hyperframes::FakeUndefined("host memory is let go while a copy uses it");
  }
  if (ours) munmap(data, found->second.bytes);
  All().pinned.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace

namespace hyperframes {

FakeAddress LookUp(CUdeviceptr address, size_t bytes, CUdevice device) {
  State& state = All();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (const auto pinned = Around(state.pinned, address); pinned != state.pinned.end()) {
    const bool whole = address - pinned->first + bytes <= pinned->second.bytes;
    return whole ? FakeAddress{FakeAccess::kDevice, pinned->second.range} : FakeAddress();
  }
  const auto reserved = Around(state.reservations, address);
  if (reserved == state.reservations.end()) return {FakeAccess::kPageable, nullptr};
  auto& mappings = reserved->second.mappings;
  const auto mapped = Around(mappings, address);
  if (mapped == mappings.end() || mapped->second.access.count(device) == 0 ||
      address - mapped->first + bytes > mapped->second.bytes) {
    return FakeAddress();
  }
  return {FakeAccess::kDevice, mapped->second.range};
}

}  // namespace hyperframes

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* granule, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
  if (!hyperframes::FakeDriverIsReady()) return CUDA_ERROR_NOT_INITIALIZED;
  *granule = kFakeGranule;
  return hyperframes::IndexOfFakeGpu(properties->location.id) < 0 ? CUDA_ERROR_INVALID_DEVICE
                                                                  : CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  if (!hyperframes::FakeDriverIsReady()) return CUDA_ERROR_NOT_INITIALIZED;
  if (const CUresult refused = Refuse(*properties); refused != CUDA_SUCCESS) return refused;
  if (bytes == 0 || !InGranules(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const int index = hyperframes::IndexOfFakeGpu(properties->location.id);
  if (static_cast<long long>(bytes) > hyperframes::FakeFreeBytes(index)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const int descriptor = memfd_create(hyperframes::FakeMemoryName(index).c_str(), MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *handle = Remember(descriptor, index, properties->requestedHandleTypes != 0);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto found = All().allocations.find(handle);
  if (found == All().allocations.end() || !found->second.may_export || flags != 0 ||
      type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int copy = fcntl(found->second.descriptor, F_DUPFD, 0);
  memcpy(shareable, &copy, sizeof(copy));
  return copy < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

// The descriptor stays the caller's.
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  if (!hyperframes::FakeDriverIsReady()) return CUDA_ERROR_NOT_INITIALIZED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  char target[128] = "";
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  if (readlink(link.c_str(), target, sizeof(target) - 1) < 0) return CUDA_ERROR_INVALID_VALUE;
  for (int index = 0; index < hyperframes::FakeGpuCount(); ++index) {
    if ("/memfd:" + hyperframes::FakeMemoryName(index) + " (deleted)" != target) continue;
    *handle = Remember(fcntl(descriptor, F_DUPFD_CLOEXEC, 0), index, /*may_export=*/true);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto found = All().allocations.find(handle);
  if (found == All().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  memset(properties, 0, sizeof(*properties));
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = hyperframes::DeviceOfFakeGpu(found->second.index);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto found = All().allocations.find(handle);
  if (found == All().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  close(found->second.descriptor);
  All().allocations.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  if (!hyperframes::FakeDriverIsReady()) return CUDA_ERROR_NOT_INITIALIZED;
  if (bytes == 0 || !InGranules(bytes) || alignment != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // One granule more, so that a whole number of them lies aligned inside; what is over stays.
  void* const reserved = mmap(nullptr, bytes + kFakeGranule, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<CUdeviceptr>(reserved);
  *address = (begin + kFakeGranule - 1) / kFakeGranule * kFakeGranule;
  const std::lock_guard<std::mutex> lock(All().mutex);
  All().reservations[*address].bytes = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto found = All().reservations.find(address);
  if (found == All().reservations.end() || found->second.bytes != bytes ||
      !found->second.mappings.empty()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(PointerOf(address), bytes);
  All().reservations.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  State& state = All();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const auto allocation = state.allocations.find(handle);
  const auto reserved = Around(state.reservations, address);
  if (allocation == state.allocations.end() || reserved == state.reservations.end() || bytes == 0 ||
      !InGranules(address) || !InGranules(bytes) || !InGranules(offset) || flags != 0 ||
      address - reserved->first + bytes > reserved->second.bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct stat file = {};
  fstat(allocation->second.descriptor, &file);
  if (offset + bytes > static_cast<size_t>(file.st_size)) return CUDA_ERROR_INVALID_VALUE;
  auto& mappings = reserved->second.mappings;
  for (const auto& [at, mapping] : mappings) {
    if (address < at + mapping.bytes && at < address + bytes) return CUDA_ERROR_INVALID_VALUE;
  }
  Mapping mapping;
  mapping.bytes = bytes;
  mapping.index = allocation->second.index;
  mapping.descriptor = fcntl(allocation->second.descriptor, F_DUPFD_CLOEXEC, 0);
  // Nobody may use it before cuMemSetAccess.
  void* const mapped = mmap(PointerOf(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                            mapping.descriptor, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  mappings[address] = std::move(mapping);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto reserved = Around(All().reservations, address);
  if (reserved == All().reservations.end() || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = reserved->second.mappings.find(address);
  if (mapped == reserved->second.mappings.end() || mapped->second.bytes != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    const int index = hyperframes::IndexOfFakeGpu(access[i].location.id);
    if (index < 0) return CUDA_ERROR_INVALID_DEVICE;
    if (index != mapped->second.index && hyperframes::FakeGpusAre("apart")) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_NOT_SUPPORTED;
    mapped->second.access.insert(access[i].location.id);
  }
  mprotect(PointerOf(address), bytes, PROT_READ | PROT_WRITE);
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto reserved = Around(All().reservations, address);
  if (reserved == All().reservations.end()) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = reserved->second.mappings.find(address);
  if (mapped == reserved->second.mappings.end() || mapped->second.bytes != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mapped->second.range.use_count() > 1) {
    hyperframes::FakeUndefined("memory is unmapped while a copy uses it");
  }
  if (mmap(PointerOf(address), bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  close(mapped->second.descriptor);
  reserved->second.mappings.erase(mapped);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void* data, size_t bytes, unsigned) {
  if (hyperframes::CurrentFakeContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (data == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  State& state = All();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const auto begin = reinterpret_cast<CUdeviceptr>(data);
  if (Overlaps(state, begin, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  state.pinned[begin].bytes = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* data) {
  if (hyperframes::CurrentFakeContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return Unpin(data, /*ours=*/false);
}

CUresult cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  if (hyperframes::CurrentFakeContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*data == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> lock(All().mutex);
  Pinned& pinned = All().pinned[reinterpret_cast<CUdeviceptr>(*data)];
  pinned.bytes = bytes;
  pinned.ours = true;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* data) {
  if (hyperframes::CurrentFakeContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return Unpin(data, /*ours=*/true);
}

}  // extern "C"
