#include "client/doctor/causes.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace hyperframes {
namespace doctor {
namespace {

using MaybeReason = absl::optional<Reason>;

constexpr Bytes kEnoughToLock = kGiB;
constexpr Bytes kEnoughRoom = kGiB;
constexpr Bytes kEnoughSharedMemory = 256 * kMiB;  // Docker gives 64 MiB.

// The GPUs that a path leads through, as far as they are known: of a collective all of them.
using Ends = std::vector<const GpuFacts*>;

bool IsCollective(const PathFacts& path) {
  return path.kind == PathKind::kAllReduce || path.kind == PathKind::kSendReceive;
}

bool IsPeerPath(const PathFacts& path) {
  return path.kind == PathKind::kPeer || IsCollective(path);
}

Ends EndsOf(const PathFacts& path, const Facts& facts) {
  Ends ends;
  for (const GpuFacts& gpu : facts.gpus) {
    const bool takes_part = IsCollective(path) && gpu.visible && !gpu.simulated;
    if (takes_part || gpu.uuid == path.from || gpu.uuid == path.to) ends.push_back(&gpu);
  }
  return ends;
}

bool IsAmong(const std::string& uuid, const Ends& ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&uuid](const GpuFacts* gpu) { return gpu->uuid == uuid; });
}

MaybeReason WithoutNccl(const PathFacts& path) {
  if (!IsCollective(path) || !path.untried) return absl::nullopt;
  if (absl::IsNotFound(path.status)) {
    return Reason{"NCCL (libnccl.so.2) is not to be found",
                  "set HYPERFRAMES_NCCL_LIBRARY to the one that came with torch (nvidia/nccl/lib), "
                  "or install libnccl2"};
  }
  if (absl::IsFailedPrecondition(path.status)) {
    return Reason{"the NCCL that was found is too old",
                  "install 2.14 or later, or name another by HYPERFRAMES_NCCL_LIBRARY"};
  }
  return absl::nullopt;
}

MaybeReason Simulated(const PathFacts& path) {
  if (path.link != "simulated") return absl::nullopt;
  return Reason{
      "the simulated link is described as slower than it promises, or this machine is",
      "change HYPERFRAMES_HOST_DEVICES (peer, host, and the promises: peer-promise, host-promise, "
      "collective-promise)"};
}

MaybeReason Partitioned(const PathFacts& path, const Ends& ends) {
  if (!IsPeerPath(path)) return absl::nullopt;
  for (const GpuFacts* gpu : ends) {
    if (!gpu->mig) continue;
    return Reason{
        absl::StrCat(ShortUuid(gpu->uuid), " is partitioned (MIG), and partitions reach no peer"),
        "turn MIG off on it (nvidia-smi -mig 0), or lend host memory alone"};
  }
  return absl::nullopt;
}

MaybeReason AccessRefused(const PathFacts& path, const Ends& ends, const Facts& facts) {
  if (!IsPeerPath(path)) return absl::nullopt;
  for (const PeerAccessFacts& access : facts.peer_access) {
    const bool on_the_way = IsCollective(path)
                                ? IsAmong(access.from, ends) && IsAmong(access.to, ends)
                                : access.from == path.from && access.to == path.to;
    if (!on_the_way || access.refusal.empty()) continue;
    return Reason{absl::StrCat("peer access is off: ", access.refusal),
                  "see nvidia-smi topo -p2p r; switch off ACS or the IOMMU's translation for the "
                  "slots, or lend host memory alone"};
  }
  return absl::nullopt;
}

MaybeReason FallenBack(const PathFacts& path, const Ends& ends) {
  if (path.link != "pcie") return absl::nullopt;
  for (const GpuFacts* gpu : ends) {
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
  if (path.kind == PathKind::kPeer || path.status.ok()) return absl::nullopt;
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

// NCCL's ranks meet in shared memory, also where they send over NVLink.
MaybeReason LittleSharedMemory(const PathFacts& path, const HostFacts& host) {
  if (!IsCollective(path) || path.status.ok()) return absl::nullopt;
  if (host.shared_memory_bytes >= kEnoughSharedMemory) return absl::nullopt;
  return Reason{absl::StrCat("/dev/shm holds only ", FormatBytes(host.shared_memory_bytes),
                             ", where NCCL's ranks meet"),
                "docker --shm-size=8g or --ipc=host; an emptyDir with medium Memory in a pod"};
}

MaybeReason Separated(const PathFacts& path, const HostFacts& host) {
  const bool collective_failed = IsCollective(path) && !path.status.ok();
  const bool by_the_system = collective_failed ||
                             path.status.code() == absl::StatusCode::kFailedPrecondition ||
                             path.status.code() == absl::StatusCode::kPermissionDenied;
  if (!by_the_system || !(host.own_pid_namespace || host.own_ipc_namespace)) return absl::nullopt;
  return Reason{absl::StrCat("this container has ", host.own_pid_namespace ? "a PID" : "an IPC",
                             " namespace of its own"),
                "share it: docker --pid=host --ipc=host, or hostPID and hostIPC of the pod"};
}

MaybeReason Damaged(const Ends& ends) {
  for (const GpuFacts* gpu : ends) {
    const bool errors = gpu->uncorrected_errors.value_or(0) > 0;
    if (!errors && !gpu->row_remap_failed) continue;
    return Reason{
        absl::StrCat("the memory of ", ShortUuid(gpu->uuid), " has errors"),
        "reset the GPU (nvidia-smi -r) when nothing runs on it; replace it if they return"};
  }
  return absl::nullopt;
}

MaybeReason Unequal(const PathFacts& path, const Ends& ends) {
  if (!IsPeerPath(path) || ends.size() < 2) return absl::nullopt;
  const GpuFacts& one = *ends.front();
  for (const GpuFacts* other : ends) {
    if (one.name == other->name) continue;
    return Reason{absl::StrCat("the GPUs are of different models (", one.name, ", ", other->name,
                               "), which reach each other badly or not at all"),
                  "let jobs borrow among equal GPUs only"};
  }
  for (const GpuFacts* other : ends) {
    if (one.nvlinks == other->nvlinks) continue;
    return Reason{
        absl::StrCat("of their NVLinks ", one.nvlinks, " and ", other->nvlinks, " are up"),
        "look at nvidia-smi nvlink -s and at the fabric manager"};
  }
  return absl::nullopt;
}

Reason Unexplained(const PathFacts& path) {
  if (path.untried) {
    return {std::string(path.status.message().substr(0, 200)),
            "give it more time (--timeout 30s): then what is slow is told from what hangs"};
  }
  if (IsCollective(path) && !path.status.ok()) {
    return {std::string(path.status.message().substr(0, 200)),
            "run it with NCCL_DEBUG=INFO; switch off ACS or the IOMMU's translation for the GPUs' "
            "slots; look at dmesg | grep -i xid"};
  }
  if (!path.status.ok()) {
    return {std::string(path.status.message().substr(0, 200)),
            "look at dmesg | grep -i xid and at nvidia-smi"};
  }
  return {"nothing here explains it; another program may be using the link",
          "run it again when the machine is idle; then nvidia-smi topo -m, dmesg | grep -i xid"};
}

}  // namespace

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
  const Ends ends = EndsOf(path, facts);
  if (const MaybeReason missing = WithoutNccl(path)) return *missing;
  // From what makes the rest meaningless to what is only suspicious.
  const std::initializer_list<MaybeReason> candidates = {
      Simulated(path),
      Partitioned(path, ends),
      AccessRefused(path, ends, facts),
      NotEnoughHostMemory(path, facts.host),
      LittleSharedMemory(path, facts.host),
      Separated(path, facts.host),
      FallenBack(path, ends),
      Damaged(ends),
      Unequal(path, ends),
  };
  for (const MaybeReason& reason : candidates) {
    if (!reason.has_value()) continue;
    if (!IsCollective(path) || path.status.ok()) return *reason;
    // It may be something else: what was seen is not kept back.
    const Reason seen = Unexplained(path);
    return {absl::StrCat(seen.cause, ", perhaps because ", reason->cause),
            path.untried ? absl::StrCat(reason->remedy, "; or ", seen.remedy) : reason->remedy};
  }
  return Unexplained(path);
}

}  // namespace doctor
}  // namespace hyperframes
