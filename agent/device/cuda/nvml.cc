#include "agent/device/cuda/nvml.h"

#include <dlfcn.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr int kSuccess = 0;
constexpr unsigned kMostNvLinks = 18;
constexpr unsigned kLongestText = 96;

struct MemoryInfo {  // nvmlMemory_t, version 1.
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

absl::Status DoesNotAnswer(const std::string& uuid) {
  return absl::NotFoundError(absl::StrCat("NVML knows no GPU ", uuid.substr(0, 64),
                                          ", or it does not answer: look at nvidia-smi -L"));
}

}  // namespace

// The toolkit brings no header of NVML; these few have not changed in ten years.
struct Nvml::Functions {
  int (*init)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, void**) = nullptr;
  int (*by_uuid)(const char*, void**) = nullptr;
  int (*uuid)(void*, char*, unsigned) = nullptr;
  int (*name)(void*, char*, unsigned) = nullptr;
  int (*memory)(void*, MemoryInfo*) = nullptr;
  int (*nvlink_state)(void*, unsigned, int*) = nullptr;
};

absl::StatusOr<const Nvml*> Nvml::Get() {
  static const auto& nvml = *new absl::StatusOr<const Nvml*>(OpenOnce());
  return nvml;
}

absl::StatusOr<const Nvml*> Nvml::OpenOnce() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("there is no NVML here (", std::string(dlerror()).substr(0, 200),
                     "): install NVIDIA's driver, or let the container see it"));
  }
  auto functions = std::make_unique<Functions>();
  const auto load = [library](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, symbol));
    return *function != nullptr;
  };
  const bool complete =
      load("nvmlInit_v2", &functions->init) && load("nvmlDeviceGetCount_v2", &functions->count) &&
      load("nvmlDeviceGetHandleByIndex_v2", &functions->by_index) &&
      load("nvmlDeviceGetHandleByUUID", &functions->by_uuid) &&
      load("nvmlDeviceGetUUID", &functions->uuid) && load("nvmlDeviceGetName", &functions->name) &&
      load("nvmlDeviceGetMemoryInfo", &functions->memory);
  if (!complete) {
    return absl::NotFoundError(
        absl::StrCat(kLibrary, " lacks a function that every driver since 2015 has: reinstall it"));
  }
  load("nvmlDeviceGetNvLinkState", &functions->nvlink_state);  // Optional: only names the link.
  if (const int code = functions->init(); code != kSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("NVML does not start (code ", code, "): run nvidia-smi, which will say why"));
  }
  return new Nvml(functions.release());
}

bool Nvml::Read(void* gpu, NodeGpu* read) const {
  char uuid[kLongestText] = "";
  char name[kLongestText] = "";
  MemoryInfo memory = {};
  if (functions_->uuid(gpu, uuid, kLongestText) != kSuccess ||
      functions_->memory(gpu, &memory) != kSuccess) {
    return false;
  }
  if (functions_->name(gpu, name, kLongestText) != kSuccess) name[0] = '\0';
  read->uuid = uuid;
  read->name = name;
  read->total_bytes = static_cast<Bytes>(memory.total);
  read->free_bytes = static_cast<Bytes>(memory.free);
  for (unsigned link = 0; functions_->nvlink_state != nullptr && link < kMostNvLinks; ++link) {
    int active = 0;
    if (functions_->nvlink_state(gpu, link, &active) != kSuccess) break;
    read->active_nvlinks += active;
  }
  return true;
}

std::vector<NodeGpu> Nvml::List() const {
  std::vector<NodeGpu> found;
  unsigned count = 0;
  if (functions_->count(&count) != kSuccess) return found;
  for (unsigned index = 0; index < count; ++index) {
    void* gpu = nullptr;
    NodeGpu read;
    if (functions_->by_index(index, &gpu) != kSuccess || !Read(gpu, &read)) continue;
    read.index = static_cast<int>(index);
    found.push_back(std::move(read));
  }
  return found;
}

absl::StatusOr<NodeGpu> Nvml::Find(const std::string& uuid) const {
  void* gpu = nullptr;
  NodeGpu read;
  if (functions_->by_uuid(uuid.c_str(), &gpu) == kSuccess && Read(gpu, &read)) return read;
  return DoesNotAnswer(uuid);
}

absl::StatusOr<Bytes> Nvml::FreeBytes(const std::string& uuid) const {
  void* gpu = nullptr;
  MemoryInfo memory = {};
  if (functions_->by_uuid(uuid.c_str(), &gpu) == kSuccess &&
      functions_->memory(gpu, &memory) == kSuccess) {
    return static_cast<Bytes>(memory.free);
  }
  return DoesNotAnswer(uuid);
}

}  // namespace hyperframes
