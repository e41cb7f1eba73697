// How much host memory this process may still take, and which setting says so: the machine's free
// memory, its control group (a container's limit), and its own limits.
#ifndef HYPERFRAMES_COMMON_HOST_LIMITS_H_
#define HYPERFRAMES_COMMON_HOST_LIMITS_H_

#include <string>

#include "absl/types/optional.h"
#include "common/units.h"

namespace hyperframes {

// What is absent limits nothing, or could not be read.
struct HostLimits {
  absl::optional<Bytes> available;      // MemAvailable.
  absl::optional<Bytes> group_limit;    // The tightest control group's, version 1 or 2.
  Bytes group_used = 0;                 // In it, less what the kernel would drop at once.
  bool locks_all = false;               // A capability (CAP_IPC_LOCK) lifts RLIMIT_MEMLOCK.
  absl::optional<Bytes> memlock;        // RLIMIT_MEMLOCK.
  absl::optional<Bytes> address_space;  // RLIMIT_AS.
  Bytes address_space_used = 0;
};

// Reads files below `root` ("" for the system's own; a test's folder), and this process's limits.
HostLimits ReadHostLimits(const std::string& root = "");

// The tightest of the limits that hold for memory in use. RLIMIT_MEMLOCK is none of them: whether
// a driver's pinning counts against it depends on the driver (NVIDIA's mostly does not), and to
// believe it would leave every ordinary user's 8 MiB for a host tier.
struct HostRoom {
  Bytes bytes = 0;
  std::string limit;   // "the container's memory limit of 16GiB".
  std::string remedy;  // "docker --memory, or limits.memory of the pod".
};
HostRoom RoomOf(const HostLimits& limits);

// What of `asked` bytes can be lent: all, or 15/16 of the room, since the program needs some too.
// Free memory alone cuts nothing: some virtual machines are given more as they use it. It is said.
struct HostBudget {
  Bytes bytes = 0;
  std::string sentence;  // Need, limit and the setting to change; empty: nothing is in doubt.
};
// `setting`: what asked for it, "--host-bytes".
HostBudget FitHostBudget(Bytes asked, const std::string& setting, const HostLimits& limits);

// Why `need` bytes could not be pinned: the tightest limit that they exceed, memlock included, and
// what to change. Never empty.
std::string WhyNotPinned(Bytes need, const HostLimits& limits);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_HOST_LIMITS_H_
