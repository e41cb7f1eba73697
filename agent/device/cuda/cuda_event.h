// Events of the CUDA backend, from a pool: creating one costs more than recording it.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_EVENT_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_EVENT_H_

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/device/cuda/cuda_context.h"
#include "agent/device/device.h"
#include "common/mutex.h"

namespace hyperframes {

class CudaEvent;

// Grows with the number of events alive at once. Thread-safe; outlives its events.
class CudaEventPool : public std::enable_shared_from_this<CudaEventPool> {
 public:
  explicit CudaEventPool(std::shared_ptr<const CudaContext> context)
      : context_(std::move(context)) {}
  ~CudaEventPool();

  // An event behind everything queued on `stream` so far.
  absl::StatusOr<std::shared_ptr<const CudaEvent>> Record(CUstream stream) HF_EXCLUDES(mutex_);

  const CudaContext& context() const { return *context_; }
  const std::shared_ptr<const CudaContext>& shared_context() const { return context_; }

 private:
  friend class CudaEvent;
  void GiveBack(CUevent event) HF_EXCLUDES(mutex_);

  const std::shared_ptr<const CudaContext> context_;
  Mutex mutex_;
  std::vector<CUevent> free_ HF_GUARDED_BY(mutex_);
};

// Recorded once and never again while anybody holds it. A stream that was made to wait for it keeps
// waiting for this record of it, also after the pool has given the event to somebody else.
class CudaEvent final : public Event {
 public:
  CudaEvent(std::shared_ptr<CudaEventPool> pool, CUevent event)
      : pool_(std::move(pool)), event_(event) {}
  ~CudaEvent() override { pool_->GiveBack(event_); }

  // Also true once the context is broken: nothing runs there any more, and the next call says so.
  bool Done() const override;
  void Synchronize() const override;
  CUevent event() const { return event_; }

 private:
  const std::shared_ptr<CudaEventPool> pool_;
  const CUevent event_;
  mutable std::atomic<bool> done_{false};
};

// The CUevent behind `event`. InvalidArgument: an event of another backend that is not done yet;
// null in *cuda_event when it is done and nothing need be waited for.
absl::Status CudaEventOf(const Event& event, CUevent* cuda_event);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_EVENT_H_
