// The few functions of NVML that this project calls, for GPUs of fake_gpus.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "agent/device/cuda/fake/fake_gpus.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kTimeout = 10;
constexpr int kUninitialized = 1;
constexpr unsigned kNvLinks = 18;
constexpr unsigned kNvLink4 = 6;       // As NVML numbers versions.
constexpr int kByNvLink = 2;           // NVML_P2P_CAPS_INDEX_NVLINK.
constexpr int kNotSupportedThere = 5;  // NVML_P2P_STATUS_NOT_SUPPORTED.

struct Memory {
  unsigned long long total, free, used;
};

struct Event {
  void* gpu;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

// A GPU's handle is its index, plus one so that none is null.
int IndexOf(void* gpu) { return static_cast<int>(reinterpret_cast<intptr_t>(gpu)) - 1; }
void* HandleOf(int index) {
  return reinterpret_cast<void*>(static_cast<intptr_t>(index) + 1);  // NOLINT
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return hyperframes::FakeGpusAre("broken") ? kUninitialized : kSuccess; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(hyperframes::FakeGpuCount());
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** gpu) {
  *gpu = HandleOf(static_cast<int>(index));
  return kSuccess;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  for (int index = 0; index < hyperframes::FakeGpuCount(); ++index) {
    if (hyperframes::FakeUuid(index) != uuid) continue;
    *gpu = HandleOf(index);
    return kSuccess;
  }
  return kNotFound;
}

int nvmlDeviceGetUUID(void* gpu, char* uuid, unsigned size) {
  snprintf(uuid, size, "%s", hyperframes::FakeUuid(IndexOf(gpu)).c_str());
  return kSuccess;
}

int nvmlDeviceGetName(void* /*gpu*/, char* name, unsigned size) {
  snprintf(name, size, "Fake GPU");
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo(void* gpu, Memory* memory) {
  memory->total = hyperframes::kFakeTotalBytes;
  memory->free = static_cast<unsigned long long>(hyperframes::FakeFreeBytes(IndexOf(gpu)));
  memory->used = memory->total - memory->free;
  return kSuccess;
}

int nvmlDeviceGetNvLinkState(void* /*gpu*/, unsigned link, int* active) {
  if (!hyperframes::FakeGpusAre("nvlinks") || link >= kNvLinks) return kNotSupported;
  *active = 1;
  return kSuccess;
}

int nvmlDeviceGetNvLinkVersion(void* /*gpu*/, unsigned /*link*/, unsigned* version) {
  *version = kNvLink4;
  return kSuccess;
}

int nvmlDeviceGetP2PStatus(void* from, void* to, int capability, int* status) {
  const bool are_apart =
      hyperframes::FakeGpusAre("bridges") && IndexOf(from) / 2 != IndexOf(to) / 2;
  const bool has_links = hyperframes::FakeGpusAre("nvlinks");
  *status = capability == kByNvLink && (are_apart || !has_links) ? kNotSupportedThere : 0;
  return kSuccess;
}

int nvmlEventSetCreate(void** set) {
  *set = HandleOf(0);
  return kSuccess;
}

int nvmlEventSetFree(void* /*set*/) { return kSuccess; }

int nvmlDeviceRegisterEvents(void* /*gpu*/, unsigned long long /*types*/, void* /*set*/) {
  return kSuccess;
}

// HYPERFRAMES_FAKE_FAULT names a file of "index xid", which is taken.
int nvmlEventSetWait_v2(void* /*set*/, Event* event, unsigned timeout_ms) {
  const char* const path = getenv("HYPERFRAMES_FAKE_FAULT");
  FILE* const file = path == nullptr ? nullptr : fopen(path, "r");
  int index = 0;
  const bool fault = file != nullptr && fscanf(file, "%d %llu", &index, &event->data) == 2;
  if (file != nullptr) fclose(file);
  if (fault) {
    unlink(path);
    event->gpu = HandleOf(index);
    return kSuccess;
  }
  usleep(1000 * (timeout_ms < 10 ? timeout_ms : 10));
  return kTimeout;
}

}  // extern "C"
