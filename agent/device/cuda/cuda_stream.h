// A lane of the CUDA backend: one non-blocking stream of the GPU that computes. Copies to peers and
// to host memory are the same call, because both are mapped for this GPU.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_STREAM_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_STREAM_H_

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/device/cuda/cuda_event.h"
#include "agent/device/cuda/delay_gate.h"
#include "agent/device/cuda/interval_timer.h"
#include "agent/device/device.h"
#include "common/mutex.h"

namespace hyperframes {

// Thread-safe. Nothing but the destructor waits for the GPU.
class CudaStream final : public Stream {
 public:
  // `measure`: copies are timed for copy_busy(), which otherwise stays zero.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(std::shared_ptr<CudaEventPool> events,
                                                            bool measure);
  ~CudaStream() override;  // Waits for what was queued.

  // InvalidArgument: bytes < 0, or a null range with bytes > 0. Both ranges are memory of this GPU,
  // memory mapped for it, or host memory; only pinned host memory is copied asynchronously.
  absl::Status Copy(void* to, const void* from, Bytes bytes) override;
  // By one call where the driver can, else, and for good once it has refused, by one for each.
  absl::Status CopyAll(const std::vector<CopyPart>& parts) override;
  absl::Status Fill(void* to, uint8_t value, Bytes bytes) override;
  // InvalidArgument: a null event, or one of another backend that is not done.
  absl::Status WaitFor(std::shared_ptr<const Event> event) override;
  std::shared_ptr<const Event> Record() override;
  // InvalidArgument: a negative or infinite delay. See delay_gate.h.
  absl::Status Delay(absl::Duration delay) override HF_EXCLUDES(mutex_);
  absl::Status PostWord(SharedWord* word, uint32_t number) override;
  absl::Status AwaitWord(const SharedWord* word, uint32_t number) override;
  absl::Duration copy_busy() const override;

 private:
  CudaStream(std::shared_ptr<CudaEventPool> events, CUstream stream, bool measure);
  const CudaContext& context() const { return events_->context(); }

  const std::shared_ptr<CudaEventPool> events_;
  const CUstream stream_;
  const std::unique_ptr<IntervalTimer> timer_;  // Null without measuring.
  std::atomic<bool> batches_;
  Mutex mutex_;
  std::unique_ptr<DelayGate> gate_ HF_GUARDED_BY(mutex_);  // Made at the first delay.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_STREAM_H_
