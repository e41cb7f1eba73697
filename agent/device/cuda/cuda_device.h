// One GPU of this process. As a lender it needs no context; as the one that computes it uses the
// primary context, which is the program's own.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_DEVICE_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/device/cuda/cuda_driver.h"
#include "agent/device/cuda/cuda_event.h"
#include "agent/device/cuda/interval_timer.h"
#include "agent/device/device.h"
#include "common/mutex.h"

namespace hyperframes {

class CudaDevice final : public Device {
 public:
  // The GPU that CUDA numbers `ordinal` in this process. `measure`: copies and waits are timed.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const CudaDriver* driver, int ordinal,
                                                            bool measure);

  const DeviceDescription& description() const override { return description_; }
  CUdevice device() const { return device_; }

  // OK, or Unimplemented with the reason why memory of this GPU cannot be lent to another process,
  // and what to do: it is a partition (MIG), or its driver exports no descriptors.
  const absl::Status& lending() const { return lending_; }

  // Physical memory without an address (data() is null): Map its descriptor on the GPU that uses
  // it. InvalidArgument: bytes <= 0. Unimplemented: see lending().
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(Bytes bytes) override;
  // An exported allocation of any GPU, or a memfd, which is pinned in the background.
  absl::StatusOr<std::unique_ptr<Memory>> Map(int descriptor, Bytes bytes) override;
  // Needs no context.
  absl::StatusOr<std::unique_ptr<Memory>> Adopt(int descriptor, Bytes bytes) override;
  // InvalidArgument: tier KEEP, which needs no copies.
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(Direction direction, Tier tier) override;
  // `compute_stream` is a cudaStream_t of this GPU; null is the legacy default stream.
  absl::StatusOr<std::shared_ptr<const Event>> RecordCompute(void* compute_stream) override;
  absl::Status ComputeWait(void* compute_stream, const Event& event) override;
  bool compute_wait_blocks() const override { return false; }
  absl::Duration measured_exposed_wait() const override HF_EXCLUDES(mutex_);
  // As NVML sees it, whoever uses the rest; total_bytes where there is no NVML.
  Bytes free_bytes() const override;

 private:
  CudaDevice(const CudaDriver* driver, CUdevice device, DeviceDescription description,
             absl::Status lending, int numa_node, bool measure)
      : driver_(driver),
        device_(device),
        description_(std::move(description)),
        lending_(std::move(lending)),
        numa_node_(numa_node),
        measure_(measure) {}

  // The context and its events, made when this GPU is first used rather than lent from.
  absl::StatusOr<CudaEventPool*> Events() HF_EXCLUDES(mutex_);

  const CudaDriver* const driver_;
  const CUdevice device_;
  const DeviceDescription description_;
  const absl::Status lending_;
  const int numa_node_;
  const bool measure_;
  mutable Mutex mutex_;
  std::shared_ptr<CudaEventPool> events_ HF_GUARDED_BY(mutex_);  // Set once.
  std::unique_ptr<IntervalTimer> waits_ HF_GUARDED_BY(mutex_);   // Set once, with measuring only.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_DEVICE_H_
