// The few functions of NVML that this project calls, for GPUs of fake_gpus.h.
#include <stdio.h>
#include <string.h>

#include <cstdint>
#include <string>

#include "agent/device/cuda/fake/fake_gpus.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kNotFound = 6;
constexpr int kUninitialized = 1;

struct Memory {
  unsigned long long total, free, used;
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

}  // extern "C"
