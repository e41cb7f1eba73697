// Memory of the host backend: a sealed memfd and one shared mapping of it.
#ifndef HYPERFRAMES_AGENT_DEVICE_HOST_HOST_MEMORY_H_
#define HYPERFRAMES_AGENT_DEVICE_HOST_HOST_MEMORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/device/device.h"
#include "common/mutex.h"
#include "common/units.h"

namespace hyperframes {

// The memory limit of one simulated device. Outlives the device while allocations do. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(Bytes total) : total_(total) {}

  // False when fewer than `bytes` are free; *free is what there was.
  bool Take(Bytes bytes, Bytes* free) HF_EXCLUDES(mutex_);
  void GiveBack(Bytes bytes) HF_EXCLUDES(mutex_);
  Bytes free_bytes() const HF_EXCLUDES(mutex_);

 private:
  const Bytes total_;
  mutable Mutex mutex_;
  Bytes used_ HF_GUARDED_BY(mutex_) = 0;
};

// Unmapped and closed on destruction; a forked child does not inherit the mapping.
class HostMemory final : public Memory {
 public:
  // A fresh, zeroed memfd that can neither shrink nor grow, so that no process which maps it can be
  // killed (SIGBUS) by another one that truncates it. ResourceExhausted: a limit stands in the way,
  // the message says which; Internal: the kernel refused; the message names the call. The budget,
  // where there is one, gets `bytes` back on destruction.
  static absl::StatusOr<std::unique_ptr<Memory>> Create(const std::string& name, Bytes bytes,
                                                        std::shared_ptr<MemoryBudget> budget);

  // Takes ownership of `descriptor`, also when it fails. InvalidArgument: not a file, another size,
  // or not sealed against shrinking and growing. As for Create, the budget gets `bytes` back.
  static absl::StatusOr<std::unique_ptr<Memory>> Map(
      int descriptor, Bytes bytes, std::shared_ptr<MemoryBudget> budget = nullptr);

  ~HostMemory() override;

  char* data() const override { return data_; }
  Bytes bytes() const override { return bytes_; }
  int descriptor() const override { return descriptor_; }

 private:
  HostMemory(char* data, Bytes bytes, int descriptor, std::shared_ptr<MemoryBudget> budget)
      : data_(data), bytes_(bytes), descriptor_(descriptor), budget_(std::move(budget)) {}

  char* const data_;
  const Bytes bytes_;
  const int descriptor_;
  const std::shared_ptr<MemoryBudget> budget_;  // Null for a mapping of somebody else's.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_HOST_HOST_MEMORY_H_
