#include "agent/device/cuda/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr int kSuccess = 0;
constexpr int kTimeout = 10;
constexpr unsigned long long kXid = 8;  // nvmlEventTypeXidCriticalError.
constexpr unsigned kMostNvLinks = 18;
constexpr int kByNvLink = 2;       // NVML_P2P_CAPS_INDEX_NVLINK.
constexpr int kStatusUnknown = 6;  // NVML_P2P_STATUS_UNKNOWN.
constexpr unsigned kLongestText = 96;

struct MemoryInfo {  // nvmlMemory_t, version 1.
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct EventData {  // nvmlEventData_t.
  void* gpu;
  unsigned long long type;
  unsigned long long data;  // With kXid: its number.
  unsigned gpu_instance;
  unsigned compute_instance;
};

// By NVIDIA's catalog ("Analyzing Xid Errors"): what asks for nothing, or for a restart of the
// program. A program brings it about, or it informs.
bool LeavesTheGpuUsable(unsigned long long xid) {
  static constexpr unsigned long long kSuch[] = {
      8,  11, 13, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 63, 66,  67,  68,  69,
      70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 92, 94, 108, 109, 137, 154};
  return std::find(std::begin(kSuch), std::end(kSuch), xid) != std::end(kSuch);
}

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
  int (*p2p_status)(void*, void*, int, int*) = nullptr;
  int (*event_set)(void**) = nullptr;
  int (*free_event_set)(void*) = nullptr;
  int (*register_events)(void*, unsigned long long, void*) = nullptr;
  int (*wait)(void*, EventData*, unsigned) = nullptr;
};

class Nvml::Watch final : public FaultWatch {
 public:
  Watch(const Functions* functions, void* set) : functions_(functions), set_(set) {}
  ~Watch() override { functions_->free_event_set(set_); }
  absl::StatusOr<GpuFault> Wait(absl::Duration timeout) override {
    EventData event = {};
    const int64_t wait_ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 1, 60000);
    const int code = functions_->wait(set_, &event, static_cast<unsigned>(wait_ms));
    if (code == kTimeout) return GpuFault();
    if (code != kSuccess) {
      return absl::UnavailableError(absl::StrCat("NVML tells of no more faults (code ", code, ")"));
    }
    char uuid[kLongestText] = "";
    if (LeavesTheGpuUsable(event.data) ||
        functions_->uuid(event.gpu, uuid, kLongestText) != kSuccess) {
      return GpuFault();
    }
    return GpuFault{uuid, event.data};
  }

 private:
  const Functions* const functions_;
  void* const set_;
};

absl::StatusOr<const Nvml*> Nvml::Get() {
  static const auto& nvml = *new absl::StatusOr<const Nvml*>(OpenOnce());
  return nvml;
}

std::string Nvml::Library() {
  const char* const named = std::getenv("HYPERFRAMES_NVML_LIBRARY");
  return named != nullptr && *named != '\0' ? named : "libnvidia-ml.so.1";
}

absl::StatusOr<const Nvml*> Nvml::OpenOnce() {
  void* const library = dlopen(Library().c_str(), RTLD_NOW | RTLD_LOCAL);
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
    return absl::NotFoundError(absl::StrCat(
        Library(), " lacks a function that every driver since 2015 has: reinstall it"));
  }
  load("nvmlDeviceGetNvLinkState", &functions->nvlink_state);  // Optional: only names the link.
  load("nvmlDeviceGetP2PStatus", &functions->p2p_status);      // As much.
  // Optional: without them faults are seen only by what they break.
  if (!load("nvmlEventSetCreate", &functions->event_set) ||
      !load("nvmlEventSetFree", &functions->free_event_set) ||
      !load("nvmlDeviceRegisterEvents", &functions->register_events) ||
      !load("nvmlEventSetWait_v2", &functions->wait)) {
    functions->event_set = nullptr;
  }
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

bool Nvml::AreJoinedByNvLink(const std::string& one, const std::string& other) const {
  void* gpus[] = {nullptr, nullptr};
  int status = 0;
  if (functions_->p2p_status == nullptr || functions_->by_uuid(one.c_str(), &gpus[0]) != kSuccess ||
      functions_->by_uuid(other.c_str(), &gpus[1]) != kSuccess ||
      functions_->p2p_status(gpus[0], gpus[1], kByNvLink, &status) != kSuccess) {
    return true;
  }
  return status == 0 || status == kStatusUnknown;
}

absl::StatusOr<std::unique_ptr<FaultWatch>> Nvml::WatchFaults() const {
  void* set = nullptr;
  unsigned count = 0;
  if (functions_->event_set == nullptr || functions_->event_set(&set) != kSuccess) {
    return absl::UnimplementedError("this driver's NVML does not tell of faults");
  }
  auto watch = std::make_unique<Watch>(functions_, set);
  int watched = 0;
  functions_->count(&count);
  for (unsigned index = 0; index < count; ++index) {
    void* gpu = nullptr;
    if (functions_->by_index(index, &gpu) != kSuccess) continue;
    watched += functions_->register_events(gpu, kXid, set) == kSuccess ? 1 : 0;
  }
  if (watched > 0) return std::unique_ptr<FaultWatch>(std::move(watch));
  return absl::UnimplementedError("no GPU here tells of faults through NVML");
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
