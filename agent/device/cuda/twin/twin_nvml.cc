// NVML with one more GPU: the first one again, under the twin's UUID and with the twin's memory.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <string>

#include "agent/device/cuda/twin/twin_memory.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kNotFound = 6;
constexpr int kLibraryNotFound = 12;
constexpr int kFunctionNotFound = 13;
constexpr unsigned kLongestText = 96;

struct Memory {
  unsigned long long total, free, used;
};

char twin_handle;  // Its address alone counts.
bool IsTwin(const void* gpu) { return gpu == &twin_handle; }

void* Library() {
  static void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

// The real function of that name.
template <typename... Arguments>
int Real(const char* name, Arguments... arguments) {
  if (Library() == nullptr) return kLibraryNotFound;
  const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(Library(), name));
  return function == nullptr ? kFunctionNotFound : function(arguments...);
}

void* Original() {
  static void* const original = [] {
    void* gpu = nullptr;
    return Real("nvmlDeviceGetHandleByIndex_v2", 0u, &gpu) == kSuccess ? gpu : nullptr;
  }();
  return original;
}

void* Physical(void* gpu) { return IsTwin(gpu) ? Original() : gpu; }

std::string OriginalUuid() {
  char uuid[kLongestText] = "";
  return Real("nvmlDeviceGetUUID", Original(), +uuid, kLongestText) == kSuccess ? uuid : "";
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return Real("nvmlInit_v2"); }

// The twin comes second, whatever else there is.
int nvmlDeviceGetCount_v2(unsigned* count) {
  const int code = Real("nvmlDeviceGetCount_v2", count);
  if (code == kSuccess && *count > 0) ++*count;
  return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** gpu) {
  if (index != 1) return Real("nvmlDeviceGetHandleByIndex_v2", index == 0 ? 0 : index - 1, gpu);
  *gpu = &twin_handle;
  return Original() == nullptr ? kNotFound : kSuccess;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  if (Original() == nullptr || hyperframes::TwinUuid(OriginalUuid()) != uuid) {
    return Real("nvmlDeviceGetHandleByUUID", uuid, gpu);
  }
  *gpu = &twin_handle;
  return kSuccess;
}

int nvmlDeviceGetUUID(void* gpu, char* uuid, unsigned size) {
  const int code = Real("nvmlDeviceGetUUID", Physical(gpu), uuid, size);
  if (code == kSuccess && IsTwin(gpu)) {
    const std::string twin = hyperframes::TwinUuid(uuid);
    memcpy(uuid, twin.c_str(), twin.size());  // As long as the original.
  }
  return code;
}

int nvmlDeviceGetMemoryInfo(void* gpu, Memory* memory) {
  // Held first: what comes between the two counts on the GPU itself, and never below nothing.
  const unsigned long long held = hyperframes::HeldTwinMemory();
  const int code = Real("nvmlDeviceGetMemoryInfo", Physical(gpu), memory);
  if (code != kSuccess || Physical(gpu) != Original()) return code;
  const unsigned long long twins = hyperframes::TwinBytes(memory->total);
  memory->total = IsTwin(gpu) ? twins : memory->total - twins;
  memory->used = IsTwin(gpu) ? held : memory->used - std::min(memory->used, held);
  memory->free = memory->total - std::min(memory->total, memory->used);
  return code;
}

// Copies between the two cross no link, and nothing forbids them.
int nvmlDeviceGetP2PStatus(void* from, void* to, int capability, int* status) {
  if (Physical(from) != Physical(to)) {
    return Real("nvmlDeviceGetP2PStatus", Physical(from), Physical(to), capability, status);
  }
  *status = 0;
  return kSuccess;
}

// Faults are the GPU's own.
int nvmlDeviceRegisterEvents(void* gpu, unsigned long long types, void* set) {
  return IsTwin(gpu) ? kSuccess : Real("nvmlDeviceRegisterEvents", gpu, types, set);
}

// What the twin says as the GPU itself would. Integers and pointers all, so that four of them pass
// as they came, however many the function has.
#define HF_OF_THE_GPU(name)                                 \
  int name(void* gpu, void* a, void* b, void* c, void* d) { \
    return Real(#name, Physical(gpu), a, b, c, d);          \
  }
HF_OF_THE_GPU(nvmlDeviceGetName)
HF_OF_THE_GPU(nvmlDeviceGetNvLinkState)
HF_OF_THE_GPU(nvmlDeviceGetNvLinkVersion)
HF_OF_THE_GPU(nvmlDeviceGetCurrPcieLinkGeneration)
HF_OF_THE_GPU(nvmlDeviceGetMaxPcieLinkGeneration)
HF_OF_THE_GPU(nvmlDeviceGetCurrPcieLinkWidth)
HF_OF_THE_GPU(nvmlDeviceGetMaxPcieLinkWidth)
HF_OF_THE_GPU(nvmlDeviceGetTotalEccErrors)
HF_OF_THE_GPU(nvmlDeviceGetRemappedRows)
HF_OF_THE_GPU(nvmlDeviceGetMigMode)
HF_OF_THE_GPU(nvmlDeviceGetPersistenceMode)

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  return Real("nvmlSystemGetDriverVersion", text, size);
}
int nvmlEventSetCreate(void** set) { return Real("nvmlEventSetCreate", set); }
int nvmlEventSetFree(void* set) { return Real("nvmlEventSetFree", set); }
int nvmlEventSetWait_v2(void* set, void* event, unsigned timeout_ms) {
  return Real("nvmlEventSetWait_v2", set, event, timeout_ms);
}

}  // extern "C"
