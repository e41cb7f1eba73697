// NVIDIA's management library, opened at run time: what the node's GPUs are and how full they are,
// also those that CUDA_VISIBLE_DEVICES hides from this process. It needs no context.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_NVML_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_NVML_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// Thread-safe.
class Nvml {
 public:
  // The process's NVML, opened at the first call. NotFound: no library; FailedPrecondition: it
  // does not start.
  static absl::StatusOr<const Nvml*> Get();

  // Every GPU of the node, in NVML's order (which need not be CUDA's). A GPU that does not answer
  // is left out.
  std::vector<NodeGpu> List() const;

  // NotFound names the GPU when NVML does not know it or it does not answer.
  absl::StatusOr<NodeGpu> Find(const std::string& uuid) const;

  // Of Find only this, at a fraction of its price.
  absl::StatusOr<Bytes> FreeBytes(const std::string& uuid) const;

 private:
  struct Functions;
  explicit Nvml(const Functions* functions) : functions_(functions) {}
  static absl::StatusOr<const Nvml*> OpenOnce();
  bool Read(void* gpu, NodeGpu* read) const;

  const Functions* const functions_;  // Lives as long as the process.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_NVML_H_
