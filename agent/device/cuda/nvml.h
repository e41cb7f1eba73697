// NVIDIA's management library, opened at run time: what the node's GPUs are and how full they are,
// also those that CUDA_VISIBLE_DEVICES hides from this process. It needs no context.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_NVML_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_NVML_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/units.h"

namespace hyperframes {

// One physical GPU of this node.
struct NodeGpu {
  std::string uuid;
  int index = -1;  // In nvidia-smi; only of List.
  std::string name;
  Bytes total_bytes = 0;
  Bytes free_bytes = 0;
  int active_nvlinks = 0;
};

// What the driver calls an Xid: the GPU, and its number.
struct GpuFault {
  std::string uuid;
  uint64_t xid = 0;
};

// Hears of faults that end the GPU's usefulness. Not of those that end one program, such as a page
// fault of its kernel (Xid 31) or a copy over NVLink that its death cut off (137, 94), nor of what
// only informs (63, 154): the GPU serves the next program well.
class FaultWatch {
 public:
  virtual ~FaultWatch() = default;
  // The next fault, or an empty uuid when `timeout` has passed. Unavailable: NVML tells no more.
  virtual absl::StatusOr<GpuFault> Wait(absl::Duration timeout) = 0;
};

// Thread-safe.
class Nvml {
 public:
  // The process's NVML, opened at the first call. NotFound: no library; FailedPrecondition: it
  // does not start.
  static absl::StatusOr<const Nvml*> Get();

  // What is opened: HYPERFRAMES_NVML_LIBRARY, else libnvidia-ml.so.1.
  static std::string Library();

  // Every GPU of the node, in NVML's order (which need not be CUDA's). A GPU that does not answer
  // is left out.
  std::vector<NodeGpu> List() const;

  // NotFound names the GPU when NVML does not know it or it does not answer.
  absl::StatusOr<NodeGpu> Find(const std::string& uuid) const;

  // Whether NVLink joins the two, by a switch or a bridge. A GPU has links to some others and none
  // to the rest where there is no switch. True where this NVML does not say.
  bool AreJoinedByNvLink(const std::string& one, const std::string& other) const;

  // Faults from now on. Outlived by this object. Unimplemented: this driver does not tell.
  absl::StatusOr<std::unique_ptr<FaultWatch>> WatchFaults() const;

  // Of Find only this, at a fraction of its price.
  absl::StatusOr<Bytes> FreeBytes(const std::string& uuid) const;

 private:
  struct Functions;
  class Watch;
  explicit Nvml(const Functions* functions) : functions_(functions) {}
  static absl::StatusOr<const Nvml*> OpenOnce();
  bool Read(void* gpu, NodeGpu* read) const;

  const Functions* const functions_;  // Lives as long as the process.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_NVML_H_
