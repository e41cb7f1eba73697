// The GPUs and the host memory of one node, simulated or real, as whoever lends them sees them.
// What the backends differ in stands behind this front, so that an agent is written once.
#ifndef HYPERFRAMES_AGENT_DEVICE_GPU_MACHINE_H_
#define HYPERFRAMES_AGENT_DEVICE_GPU_MACHINE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/device/device.h"

namespace hyperframes {

// Thread-safe: which devices there are never changes.
class GpuMachine {
 public:
  virtual ~GpuMachine() = default;

  // "host" or "cuda".
  virtual std::string backend() const = 0;
  // Without host memory. On CUDA in CUDA's order, which is the order of torch's indices.
  virtual const std::vector<Device*>& gpus() const = 0;
  // Host memory as a lender: the device "host:<node>".
  virtual Device* host() const = 0;
  // A GPU or the host device; null when there is none of that UUID.
  Device* Find(const std::string& uuid) const {
    if (host() != nullptr && host()->description().uuid == uuid) return host();
    for (Device* gpu : gpus()) {
      if (gpu->description().uuid == uuid) return gpu;
    }
    return nullptr;
  }

  // The number that the node's tools show for it (nvidia-smi's); for people, never an identity.
  virtual int IndexOf(const Device& gpu) const = 0;
  // OK, or why this GPU neither lends nor runs workers now, and what to do about it.
  virtual absl::Status CheckUsable(const Device& gpu) const = 0;
  // Whether `from` can copy into memory of `to` directly.
  virtual bool CanReach(const Device& from, const Device& to) const = 0;
  // "simulated", "nvlink" or "pcie", for people.
  virtual std::string LinkKind(const Device& from, const Device& to) const = 0;
  // The environment by which a worker that computes on `own` finds it. `visible`: the GPUs that it
  // sees, itself among them, in the order of the node's ranks; empty: its own alone.
  virtual std::map<std::string, std::string> WorkerVariables(
      const Device& own, const std::vector<std::string>& visible) const = 0;
};

// WorkerVariables of the CUDA backend, for whoever stands in for it.
std::map<std::string, std::string> CudaWorkerVariables(const Device& own,
                                                       const std::vector<std::string>& visible);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_GPU_MACHINE_H_
