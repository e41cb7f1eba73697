// Room: client/doctor. Whether this machine's links do what their type promises, and where not,
// why. Facts are collected behind FactSource, judged by a pure function (judgement.h), and shown by
// hfctl and at the start of a job. It must not know plans, jobs or gRPC.
//
// Here: what there is to know about a machine, as plain values that tests write down by hand. What
// nobody could tell keeps its "unknown": zero, an absent optional, or an empty text.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_FACTS_H_
#define HYPERFRAMES_CLIENT_DOCTOR_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/units.h"

namespace hyperframes {
namespace doctor {

enum class PathKind { kPeer, kToHost, kFromHost, kAllReduce, kSendReceive };

// One way that bytes take, and how fast they were seen to go.
struct PathFacts {
  PathKind kind = PathKind::kPeer;
  std::string from;  // UUIDs; of a collective the first and the last GPU.
  std::string to;
  std::string link;              // "nvlink", "pcie" or "simulated".
  double bytes_per_second = 0;   // Measured; only where status is OK.
  absl::Duration latency;        // Likewise.
  double simulated_promise = 0;  // What a simulated link is said to promise; 0: nothing.
  absl::Status status;           // Why it could not be measured.
  bool out_of_time = false;      // It was not measured: no time, or no free memory.
  bool untried = false;          // Nor was it tried, and status, which is no fault of it, says why.
};

struct GpuFacts {
  std::string uuid;
  std::string name;
  bool simulated = false;
  bool visible = true;  // To CUDA in this process.
  Bytes total_bytes = 0;
  Bytes free_bytes = 0;
  int nvlinks = 0;  // Active ones.
  // NVML's code: 1 NVLink 1, 2 and 3 NVLink 2, 4 and 5 NVLink 3, 6 NVLink 4, 7 NVLink 5.
  int nvlink_version = 0;
  int pcie_generation = 0;  // Now. An idle GPU may run slower to save power.
  int most_pcie_generation = 0;
  int pcie_width = 0;
  int most_pcie_width = 0;
  absl::optional<int64_t> uncorrected_errors;  // Of memory, since the driver was loaded.
  bool row_remap_failed = false;
  bool row_remap_pending = false;
  bool mig = false;
  absl::optional<bool> persistence;
};

// Whether NVML says that `from` may use memory of `to`, and if not, why.
struct PeerAccessFacts {
  std::string from;
  std::string to;
  std::string refusal;  // Empty: it may.
};

struct HostFacts {
  bool is_root = false;                // Or has CAP_IPC_LOCK: `memlock` does not bind it.
  absl::optional<Bytes> memlock;       // Absent: unlimited.
  Bytes shared_memory_bytes = 0;       // Size of /dev/shm; 0: there is none.
  absl::optional<Bytes> memory_limit;  // Of the container; absent: none.
  Bytes memory_used = 0;               // Against that limit.
  Bytes available_bytes = 0;           // MemAvailable.
  bool own_pid_namespace = false;
  bool own_ipc_namespace = false;
  bool kernel_driver = false;  // /proc/driver/nvidia is there: the kernel has the module.
  int gpus_of_kernel = 0;      // That the module knows.
  int device_files = 0;        // /dev/nvidia0, ...
};

struct Facts {
  HostFacts host;
  bool cuda_in_build = true;
  absl::Status driver;  // Whether CUDA could be opened. OK where nobody tried.
  bool driver_tried = false;
  std::string driver_version;  // NVML's, "580.65.06".
  std::vector<GpuFacts> gpus;
  std::vector<PeerAccessFacts> peer_access;
  std::vector<PathFacts> paths;
  bool answered = true;  // False: a source (its name is in `stuck`) did not come back in time.
  std::string stuck;
  absl::Duration elapsed;
};

// One place where facts come from.
class FactSource {
 public:
  virtual ~FactSource() = default;
  // "the links", for a sentence.
  virtual std::string name() const = 0;
  // Adds what it can learn until `deadline` (of the process's monotonic clock), and never fails:
  // that something cannot be learned is a fact. A driver that hangs may keep it for ever.
  virtual void Collect(absl::Time deadline, Facts* facts) = 0;
};

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_FACTS_H_
