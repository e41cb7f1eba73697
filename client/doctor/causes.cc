#include "client/doctor/causes.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace hyperframes {
namespace doctor {
namespace {

using MaybeReason = absl::optional<Reason>;

constexpr Bytes kEnoughToLock = kGiB;
constexpr Bytes kEnoughRoom = kGiB;

// What a path leads through, as far as it is known.
struct Ends {
  const GpuFacts* from;
  const GpuFacts* to;
};

bool IsPeerPath(const PathFacts& path) {
  return path.kind == PathKind::kPeer || path.kind == PathKind::kAllReduce ||
         path.kind == PathKind::kSendReceive;
}

MaybeReason Simulated(const PathFacts& path) {
  if (path.link != "simulated") return absl::nullopt;
  return Reason{"the simulated link is described as slower than it promises, or this machine is",
                "change HYPERFRAMES_HOST_DEVICES (peer, host, peer-promise, host-promise)"};
}

MaybeReason Partitioned(const PathFacts& path, const Ends& ends) {
  if (!IsPeerPath(path)) return absl::nullopt;
  for (const GpuFacts* gpu : {ends.from, ends.to}) {
    if (gpu == nullptr || !gpu->mig) continue;
    return Reason{
        absl::StrCat(ShortUuid(gpu->uuid), " is partitioned (MIG), and partitions reach no peer"),
        "turn MIG off on it (nvidia-smi -mig 0), or lend host memory alone"};
  }
  return absl::nullopt;
}

MaybeReason AccessRefused(const PathFacts& path, const Facts& facts) {
  if (!IsPeerPath(path)) return absl::nullopt;
  for (const PeerAccessFacts& access : facts.peer_access) {
    if (access.from != path.from || access.to != path.to || access.refusal.empty()) continue;
    return Reason{absl::StrCat("peer access is off: ", access.refusal),
                  "see nvidia-smi topo -p2p r; switch off ACS or the IOMMU's translation for the "
                  "slots, or lend host memory alone"};
  }
  return absl::nullopt;
}

MaybeReason FallenBack(const PathFacts& path, const Ends& ends) {
  if (path.link != "pcie") return absl::nullopt;
  for (const GpuFacts* gpu : {ends.from, ends.to}) {
    if (gpu == nullptr) continue;
    if (HasFallenBack(*gpu)) {
      return Reason{absl::StrCat(ShortUuid(gpu->uuid), " runs on ", gpu->pcie_width, " of ",
                                 gpu->most_pcie_width, " PCIe lanes"),
                    "reseat the card, or look at the riser and the slot's setting in the firmware"};
    }
    // Read right after copying, when a GPU that saves power has woken up.
    if (gpu->pcie_generation > 0 && gpu->pcie_generation < gpu->most_pcie_generation) {
      return Reason{absl::StrCat(ShortUuid(gpu->uuid), " runs at PCIe ", gpu->pcie_generation,
                                 " instead of ", gpu->most_pcie_generation),
                    "look at the slot's setting in the firmware, and at dmesg for PCIe errors"};
    }
  }
  return absl::nullopt;
}

MaybeReason NotEnoughHostMemory(const PathFacts& path, const HostFacts& host) {
  if (IsPeerPath(path) || path.status.ok()) return absl::nullopt;
  if (IsLockingLimited(host)) {
    return Reason{absl::StrCat("this process may lock only ", FormatBytes(*host.memlock),
                               " of memory, and copies need it locked"),
                  "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity, or docker --ulimit "
                  "memlock=-1"};
  }
  if (RoomInContainer(host) < kEnoughRoom) {
    return Reason{absl::StrCat("the container may take only ", FormatBytes(RoomInContainer(host)),
                               " more of its ", FormatBytes(*host.memory_limit)),
                  "raise the container's memory limit by what is to be lent"};
  }
  return absl::nullopt;
}

MaybeReason Separated(const PathFacts& path, const HostFacts& host) {
  const bool by_the_system = path.status.code() == absl::StatusCode::kFailedPrecondition ||
                             path.status.code() == absl::StatusCode::kPermissionDenied;
  if (!by_the_system || !(host.own_pid_namespace || host.own_ipc_namespace)) return absl::nullopt;
  return Reason{absl::StrCat("this container has ", host.own_pid_namespace ? "a PID" : "an IPC",
                             " namespace of its own"),
                "share it: docker --pid=host --ipc=host, or hostPID and hostIPC of the pod"};
}

MaybeReason Damaged(const Ends& ends) {
  for (const GpuFacts* gpu : {ends.from, ends.to}) {
    if (gpu == nullptr) continue;
    const bool errors = gpu->uncorrected_errors.value_or(0) > 0;
    if (!errors && !gpu->row_remap_failed) continue;
    return Reason{
        absl::StrCat("the memory of ", ShortUuid(gpu->uuid), " has errors"),
        "reset the GPU (nvidia-smi -r) when nothing runs on it; replace it if they return"};
  }
  return absl::nullopt;
}

MaybeReason Unequal(const PathFacts& path, const Ends& ends) {
  if (!IsPeerPath(path) || ends.from == nullptr || ends.to == nullptr) return absl::nullopt;
  if (ends.from->name != ends.to->name) {
    return Reason{absl::StrCat("the GPUs are of different models (", ends.from->name, ", ",
                               ends.to->name, "), which reach each other badly or not at all"),
                  "let jobs borrow among equal GPUs only"};
  }
  if (ends.from->nvlinks != ends.to->nvlinks) {
    return Reason{
        absl::StrCat("of their NVLinks ", ends.from->nvlinks, " and ", ends.to->nvlinks, " are up"),
        "look at nvidia-smi nvlink -s and at the fabric manager"};
  }
  return absl::nullopt;
}

Reason Unexplained(const PathFacts& path) {
  if (!path.status.ok()) {
    return {std::string(path.status.message().substr(0, 200)),
            "look at dmesg | grep -i xid and at nvidia-smi"};
  }
  return {"nothing here explains it; another program may be using the link",
          "run it again when the machine is idle; then nvidia-smi topo -m, dmesg | grep -i xid"};
}

}  // namespace

const GpuFacts* FindGpu(const Facts& facts, const std::string& uuid) {
  for (const GpuFacts& gpu : facts.gpus) {
    if (gpu.uuid == uuid) return &gpu;
  }
  return nullptr;
}

std::string ShortUuid(const std::string& uuid) {
  constexpr size_t kLength = 12;  // "GPU-" and eight digits.
  const bool long_one = uuid.rfind("GPU-", 0) == 0 && uuid.size() > kLength;
  return long_one ? uuid.substr(0, kLength) : uuid;
}

bool HasFallenBack(const GpuFacts& gpu) {
  return gpu.pcie_width > 0 && gpu.pcie_width < gpu.most_pcie_width;
}

bool IsLockingLimited(const HostFacts& host) {
  return !host.is_root && host.memlock.has_value() && *host.memlock < kEnoughToLock;
}

Bytes RoomInContainer(const HostFacts& host) {
  if (!host.memory_limit.has_value()) return std::numeric_limits<Bytes>::max();
  return std::max<Bytes>(0, *host.memory_limit - host.memory_used);
}

Reason LikelyReason(const PathFacts& path, const Facts& facts) {
  const Ends ends = {FindGpu(facts, path.from), FindGpu(facts, path.to)};
  // From what makes the rest meaningless to what is only suspicious.
  const std::initializer_list<MaybeReason> candidates = {
      Simulated(path),
      Partitioned(path, ends),
      AccessRefused(path, facts),
      NotEnoughHostMemory(path, facts.host),
      Separated(path, facts.host),
      FallenBack(path, ends),
      Damaged(ends),
      Unequal(path, ends),
  };
  for (const MaybeReason& reason : candidates) {
    if (reason.has_value()) return *reason;
  }
  return Unexplained(path);
}

}  // namespace doctor
}  // namespace hyperframes
