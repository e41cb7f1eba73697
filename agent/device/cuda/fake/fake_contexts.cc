#include "agent/device/cuda/fake/fake_contexts.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "agent/device/cuda/fake/fake_gpus.h"

namespace hyperframes {
namespace {

std::atomic<pid_t> started_by{0};

std::mutex mutex;
std::map<CUdevice, FakeContext*>& Contexts() {
  static auto& contexts = *new std::map<CUdevice, FakeContext*>();
  return contexts;
}

bool IsAlive(const FakeContext* context) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [device, known] : Contexts()) {
    if (known == context) return known->retained > 0;
  }
  return false;
}

thread_local std::vector<FakeContext*> current;

void LogContext(const char* function) {
  const char* const path = getenv("HYPERFRAMES_FAKE_LOG");
  if (path == nullptr) return;
  FILE* const log = fopen(path, "a");
  if (log == nullptr) return;
  fprintf(log, "%s by process %d\n", function, getpid());
  fclose(log);
}

// CUDA_VISIBLE_DEVICES as it was when the driver started.
std::atomic<bool> hides_nothing{true};
std::string& Named() {
  static auto& named = *new std::string();
  return named;
}

// Indices as NVML counts. CUDA's order is the reverse of it: who confuses the two lends another
// GPU's memory.
std::vector<int> Visible() {
  std::vector<int> all;
  for (int index = FakeGpuCount() - 1; index >= 0; --index) all.push_back(index);
  if (hides_nothing) return all;
  std::vector<int> visible;
  std::istringstream list(Named());
  for (std::string one; std::getline(list, one, ',');) {
    int found = -1;
    for (size_t ordinal = 0; ordinal < all.size(); ++ordinal) {
      if (one == FakeUuid(all[ordinal]) || one == std::to_string(ordinal)) found = all[ordinal];
    }
    if (found < 0) break;  // What stands behind an unknown one is hidden too.
    visible.push_back(found);
  }
  return visible;
}

}  // namespace

FakeContext* CurrentFakeContext() {
  return current.empty() || !IsAlive(current.back()) ? nullptr : current.back();
}

bool FakeDriverIsReady() { return started_by == getpid(); }

bool StartFakeDriver() {
  const char* const named = getenv("CUDA_VISIBLE_DEVICES");
  hides_nothing = named == nullptr;
  Named() = hides_nothing ? "" : named;
  if (VisibleFakeGpus() == 0) return false;
  started_by = getpid();
  return true;
}

int VisibleFakeGpus() { return static_cast<int>(Visible().size()); }

int IndexOfFakeGpu(CUdevice device) {
  const std::vector<int> visible = Visible();
  return device < 0 || device >= static_cast<int>(visible.size()) ? -1 : visible[size_t(device)];
}

CUdevice DeviceOfFakeGpu(int index) {
  const std::vector<int> visible = Visible();
  for (size_t at = 0; at < visible.size(); ++at) {
    if (visible[at] == index) return static_cast<CUdevice>(at);
  }
  return -1;
}

void FakeUndefined(const char* what) {
  fprintf(stderr, "the real driver would corrupt memory here: %s\n", what);
  abort();
}

}  // namespace hyperframes

using namespace hyperframes;  // NOLINT: the driver's functions are in no namespace.

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  LogContext("cuDevicePrimaryCtxRetain");
  if (!FakeDriverIsReady()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!FakeGpusAre("contexts")) return CUDA_ERROR_NOT_SUPPORTED;
  if (IndexOfFakeGpu(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard<std::mutex> lock(mutex);
  FakeContext*& known = Contexts()[device];
  // Never the same object after its end: whoever kept a handle is found out.
  if (known == nullptr || known->retained == 0) {
    static auto& all = *new std::vector<FakeContext*>();  // None of them is a leak.
    all.push_back(known = new FakeContext(device));
  }
  ++known->retained;
  *context = reinterpret_cast<CUcontext>(known);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Contexts().find(device);
  if (found == Contexts().end() || found->second->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --found->second->retained;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  if (!FakeDriverIsReady()) return CUDA_ERROR_NOT_INITIALIZED;
  *context = current.empty() ? nullptr : reinterpret_cast<CUcontext>(current.back());
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  auto* const pushed = reinterpret_cast<FakeContext*>(context);
  if (!FakeDriverIsReady()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!IsAlive(pushed)) return CUDA_ERROR_INVALID_CONTEXT;
  current.push_back(pushed);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(current.back());
  current.pop_back();
  return CUDA_SUCCESS;
}

}  // extern "C"
