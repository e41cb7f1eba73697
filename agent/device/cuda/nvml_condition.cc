#include "agent/device/cuda/nvml_condition.h"

#include <dlfcn.h>

#include "agent/device/cuda/nvml.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// nvml.h comes with no toolkit: what is used of it, by its numbers, which never change.
constexpr int kSuccess = 0;
constexpr unsigned kMostNvLinks = 18;
constexpr unsigned kLongestText = 96;
constexpr int kUncorrected = 1;  // NVML_MEMORY_ERROR_TYPE_UNCORRECTED.
constexpr int kVolatile = 0;     // NVML_VOLATILE_ECC: since the driver was loaded.
constexpr int kPeerRead = 0;     // NVML_P2P_CAPS_INDEX_READ.

// One function of the library, or none: every fact is worth having without the others.
template <typename... Arguments>
class Call {
 public:
  Call(void* library, const char* name)
      : function_(reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name))) {}
  bool operator()(Arguments... arguments) const {
    return function_ != nullptr && function_(arguments...) == kSuccess;
  }

 private:
  int (*const function_)(Arguments...);
};

class Reader {
 public:
  explicit Reader(void* library) : library_(library) {}

  std::string DriverVersion() const {
    char text[kLongestText] = "";
    Call<char*, unsigned>(library_, "nvmlSystemGetDriverVersion")(text, kLongestText);
    return text;
  }

  void* Handle(const std::string& uuid) const {
    void* gpu = nullptr;
    Call<const char*, void**>(library_, "nvmlDeviceGetHandleByUUID")(uuid.c_str(), &gpu);
    return gpu;
  }

  int Number(void* gpu, const char* function) const {
    unsigned value = 0;
    return Call<void*, unsigned*>(library_, function)(gpu, &value) ? static_cast<int>(value) : 0;
  }

  // Of the first link that is up.
  int NvLinkVersion(void* gpu) const {
    const Call<void*, unsigned, int*> state(library_, "nvmlDeviceGetNvLinkState");
    const Call<void*, unsigned, unsigned*> version(library_, "nvmlDeviceGetNvLinkVersion");
    for (unsigned link = 0; link < kMostNvLinks; ++link) {
      int active = 0;
      unsigned found = 0;
      if (state(gpu, link, &active) && active != 0 && version(gpu, link, &found)) {
        return static_cast<int>(found);
      }
    }
    return 0;
  }

  void ReadErrors(void* gpu, GpuCondition* read) const {
    unsigned long long errors = 0;
    const Call<void*, int, int, unsigned long long*> total(library_, "nvmlDeviceGetTotalEccErrors");
    if (total(gpu, kUncorrected, kVolatile, &errors)) {
      read->uncorrected_errors = static_cast<int64_t>(errors);
    }
    unsigned correctable = 0, uncorrectable = 0, pending = 0, failed = 0;
    const Call<void*, unsigned*, unsigned*, unsigned*, unsigned*> rows(library_,
                                                                       "nvmlDeviceGetRemappedRows");
    if (rows(gpu, &correctable, &uncorrectable, &pending, &failed)) {
      read->row_remap_pending = pending != 0;
      read->row_remap_failed = failed != 0;
    }
  }

  void ReadModes(void* gpu, GpuCondition* read) const {
    unsigned mig = 0, pending = 0;
    if (Call<void*, unsigned*, unsigned*>(library_, "nvmlDeviceGetMigMode")(gpu, &mig, &pending)) {
      read->mig = mig != 0;
    }
    int persistence = 0;
    if (Call<void*, int*>(library_, "nvmlDeviceGetPersistenceMode")(gpu, &persistence)) {
      read->persistence = persistence != 0;
    }
  }

  // Empty where `from` may read memory of `to`, or NVML does not say.
  std::string Refusal(void* from, void* to) const {
    int status = 0;
    const Call<void*, void*, int, int*> ask(library_, "nvmlDeviceGetP2PStatus");
    if (!ask(from, to, kPeerRead, &status)) return "";
    switch (status) {
      case 0:
        return "";
      case 1:
        return "the chipset does not support it";
      case 2:
        return "the GPU does not support it";
      case 3:
        return "the GPUs hang on different I/O hubs";
      case 4:
        return "the driver's settings disable it";
      default:
        return "it is not supported between these GPUs";
    }
  }

 private:
  void* const library_;
};

GpuCondition Read(const Reader& reader, const NodeGpu& gpu) {
  GpuCondition read;
  read.uuid = gpu.uuid;
  read.name = gpu.name;
  read.active_nvlinks = gpu.active_nvlinks;
  void* const handle = reader.Handle(gpu.uuid);
  if (handle == nullptr) return read;
  read.nvlink_version = reader.NvLinkVersion(handle);
  read.pcie_generation = reader.Number(handle, "nvmlDeviceGetCurrPcieLinkGeneration");
  read.most_pcie_generation = reader.Number(handle, "nvmlDeviceGetMaxPcieLinkGeneration");
  read.pcie_width = reader.Number(handle, "nvmlDeviceGetCurrPcieLinkWidth");
  read.most_pcie_width = reader.Number(handle, "nvmlDeviceGetMaxPcieLinkWidth");
  reader.ReadErrors(handle, &read);
  reader.ReadModes(handle, &read);
  return read;
}

}  // namespace

absl::StatusOr<NodeCondition> ReadNodeCondition() {
  HF_ASSIGN_OR_RETURN(const Nvml* nvml, Nvml::Get());  // Opens and initialises it, for good.
  void* const library = dlopen(Nvml::Library().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError("NVML has gone");
  const Reader reader(library);
  NodeCondition node;
  node.driver_version = reader.DriverVersion();
  for (const NodeGpu& gpu : nvml->List()) node.gpus.push_back(Read(reader, gpu));
  for (const GpuCondition& from : node.gpus) {
    for (const GpuCondition& to : node.gpus) {
      if (from.uuid == to.uuid) continue;
      std::string reason = reader.Refusal(reader.Handle(from.uuid), reader.Handle(to.uuid));
      if (!reason.empty()) node.refusals.push_back({from.uuid, to.uuid, std::move(reason)});
    }
  }
  return node;
}

}  // namespace hyperframes
