#include "client/doctor/machine_judgement.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/doctor/causes.h"

namespace hyperframes {
namespace doctor {
namespace {

constexpr Bytes kEnoughSharedMemory = kGiB;
constexpr Bytes kEnoughRoom = kGiB;
constexpr int kFastEnoughPcie = 4;  // The generation from which moving beats recomputing.

using Findings = std::vector<Finding>;

int64_t RealGpus(const Facts& facts) {
  return std::count_if(facts.gpus.begin(), facts.gpus.end(),
                       [](const GpuFacts& gpu) { return !gpu.simulated; });
}

Findings RealGpusMissing(const Facts& facts) {
  const HostFacts& host = facts.host;
  if (RealGpus(facts) > 0) {
    return {{Severity::kBroken, "CUDA", absl::StrCat("sees none of ", RealGpus(facts), " GPUs"), "",
             "CUDA_VISIBLE_DEVICES hides them, or the driver's library does not fit its module",
             "unset CUDA_VISIBLE_DEVICES; else run nvidia-smi, which says what does not fit"}};
  }
  if (host.kernel_driver && host.device_files == 0) {
    return {{Severity::kBroken, "/dev/nvidia*", "missing", "",
             "the kernel has the driver, but this container was given no GPU",
             "start it with GPUs: docker --gpus all, or nvidia.com/gpu in the pod's limits"}};
  }
  if (host.kernel_driver) {
    return {{Severity::kBroken, "libcuda.so.1", "not found", "",
             "the driver's library is not visible here",
             "let the container see it: NVIDIA_DRIVER_CAPABILITIES=compute,utility"}};
  }
  return {{Severity::kNote, "GPUs", "none", "", "there is no NVIDIA driver on this machine",
           "checked was what needs none"}};
}

Findings JudgeDriver(const Facts& facts) {
  const bool any_sign = RealGpus(facts) > 0 || facts.host.kernel_driver;
  if (!facts.cuda_in_build) {
    return {{any_sign ? Severity::kBroken : Severity::kNote, "this build", "has no CUDA backend",
             "", "no CUDA toolkit was found when it was built",
             "build it where one is (CUDA_HOME), or install a release that has it"}};
  }
  if (!facts.driver_tried || facts.driver.ok()) return {};
  if (facts.driver.code() == absl::StatusCode::kNotFound) return RealGpusMissing(facts);
  std::string version = facts.driver_version.empty() ? "it" : facts.driver_version;
  return {{Severity::kBroken, "CUDA driver", absl::StrCat(version, " does not start"), "",
           std::string(facts.driver.message().substr(0, 240)),
           "install a driver for CUDA 12 or later; in a container, of the host's version"}};
}

void JudgeLimits(const HostFacts& host, bool gpus, Findings* findings) {
  if (gpus && IsLockingLimited(host)) {
    findings->push_back(
        {Severity::kWarning, "ulimit -l", FormatBytes(*host.memlock), "unlimited",
         "memory that is copied from and to must be locked",
         "ulimit -l unlimited, LimitMEMLOCK=infinity or docker --ulimit memlock=-1"});
  }
  if (RoomInContainer(host) < kEnoughRoom) {
    findings->push_back({Severity::kWarning, "memory limit",
                         absl::StrCat(FormatBytes(RoomInContainer(host)), " left"), "",
                         absl::StrCat("the container's limit is ", FormatBytes(*host.memory_limit)),
                         "raise it by what is to wait in host memory"});
  }
  if (host.shared_memory_bytes < kEnoughSharedMemory) {
    findings->push_back({Severity::kWarning, "/dev/shm", FormatBytes(host.shared_memory_bytes), "",
                         "NCCL and DataLoader workers need more of it",
                         "docker --shm-size=8g or --ipc=host; an emptyDir with medium Memory"});
  }
}

void JudgeSeparation(const HostFacts& host, Findings* findings) {
  if (host.own_pid_namespace) {
    findings->push_back({Severity::kNote, "PID namespace", "its own", "",
                         "an agent outside it cannot watch the workers in it",
                         "run agent and workers in one container or pod, or with --pid=host"});
  }
  if (host.device_files > 0 && host.device_files < host.gpus_of_kernel) {
    findings->push_back({Severity::kNote, "/dev/nvidia*",
                         absl::StrCat(host.device_files, " of ", host.gpus_of_kernel, " GPUs"), "",
                         "the others were not given to this container",
                         "nothing, if that is meant"});
  }
}

void JudgeModels(const Facts& facts, Findings* findings) {
  std::set<std::string> names;
  for (const GpuFacts& gpu : facts.gpus) {
    if (!gpu.simulated) names.insert(gpu.name);
  }
  if (names.size() < 2) return;
  findings->push_back({Severity::kWarning, "GPU models", absl::StrJoin(names, ", "), "all the same",
                       "different models reach each other badly or not at all",
                       "let jobs borrow among equal GPUs only"});
}

void JudgeCollectives(const Facts& facts, Findings* findings) {
  if (!facts.driver_tried || !facts.driver.ok() || RealGpus(facts) != 1) return;
  findings->push_back({Severity::kNote, "all-reduce, send/recv", "not applicable", "",
                       "a collective needs two GPUs, and there is one", "nothing is missing"});
}

void JudgeMemory(const GpuFacts& gpu, Findings* findings) {
  if (gpu.row_remap_failed) {
    findings->push_back({Severity::kBroken, ShortUuid(gpu.uuid),
                         "a row of its memory could not be replaced", "",
                         "the GPU's memory is defective", "replace the GPU"});
  } else if (gpu.row_remap_pending) {
    findings->push_back({Severity::kWarning, ShortUuid(gpu.uuid),
                         "a row of its memory waits to be replaced", "",
                         "the GPU's memory had an error", "reset it (nvidia-smi -r) when idle"});
  }
  if (gpu.uncorrected_errors.value_or(0) > 0) {
    findings->push_back({Severity::kWarning, ShortUuid(gpu.uuid),
                         absl::StrCat(*gpu.uncorrected_errors, " uncorrected memory errors"), "0",
                         "the GPU's memory had errors since the driver was loaded",
                         "reset it (nvidia-smi -r) when idle; replace it if they return"});
  }
}

void JudgeGpu(const GpuFacts& gpu, Findings* findings) {
  if (gpu.simulated) return;
  JudgeMemory(gpu, findings);
  if (gpu.mig) {
    findings->push_back({Severity::kWarning, ShortUuid(gpu.uuid), "partitioned (MIG)", "",
                         "partitions reach no peer, so only host memory is lent",
                         "nvidia-smi -mig 0, where the GPU need not be shared"});
  }
  if (HasFallenBack(gpu)) {
    findings->push_back({Severity::kWarning, ShortUuid(gpu.uuid),
                         absl::StrCat("PCIe x", gpu.pcie_width),
                         absl::StrCat("x", gpu.most_pcie_width), "the slot has fallen back",
                         "reseat the card, or look at the riser and the firmware's settings"});
  }
  if (gpu.most_pcie_generation > 0 && gpu.most_pcie_generation < kFastEnoughPcie) {
    findings->push_back({Severity::kWarning, ShortUuid(gpu.uuid),
                         absl::StrCat("PCIe ", gpu.most_pcie_generation), "",
                         "host memory is too far away to beat recomputing",
                         "use checkpointing, or lend peers over NVLink only"});
  }
  if (!gpu.visible) {
    findings->push_back({Severity::kNote, ShortUuid(gpu.uuid), "hidden by CUDA_VISIBLE_DEVICES", "",
                         "without an agent a process lends only from GPUs that it sees",
                         "make it visible, or run hfagent"});
  }
  if (!gpu.persistence.value_or(true)) {
    findings->push_back({Severity::kNote, ShortUuid(gpu.uuid), "persistence mode off", "on",
                         "the driver starts anew for every first program",
                         "run nvidia-persistenced, or nvidia-smi -pm 1"});
  }
}

}  // namespace

std::vector<Finding> JudgeMachine(const Facts& facts) {
  Findings findings;
  if (!facts.answered) {
    findings.push_back({Severity::kBroken, facts.stuck, "did not answer in time", "",
                        "the driver hangs, or a GPU has fallen off the bus",
                        "look at dmesg | grep -i xid; give more time with --timeout 30s"});
  }
  const Findings driver = JudgeDriver(facts);
  findings.insert(findings.end(), driver.begin(), driver.end());
  JudgeLimits(facts.host, RealGpus(facts) > 0, &findings);
  JudgeSeparation(facts.host, &findings);
  JudgeModels(facts, &findings);
  JudgeCollectives(facts, &findings);
  for (const GpuFacts& gpu : facts.gpus) JudgeGpu(gpu, &findings);
  return findings;
}

}  // namespace doctor
}  // namespace hyperframes
