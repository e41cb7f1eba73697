// How long intervals on streams take, by timing events. Used only when measuring was asked for: two
// more events per copy cost the program about two microseconds.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_INTERVAL_TIMER_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_INTERVAL_TIMER_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "agent/device/cuda/cuda_context.h"
#include "common/mutex.h"

namespace hyperframes {

// Thread-safe; Start and Stop of one interval come from one thread. An event that cannot be
// recorded leaves its interval out: measuring never fails a step.
class IntervalTimer {
 public:
  static constexpr size_t kMostPending = 4096;  // Beyond that the oldest is forgotten.

  explicit IntervalTimer(std::shared_ptr<const CudaContext> context)
      : context_(std::move(context)) {}
  ~IntervalTimer();

  // Begins an interval on `stream`; null when it cannot be measured.
  CUevent Start(CUstream stream) HF_EXCLUDES(mutex_);
  void Stop(CUevent start, CUstream stream) HF_EXCLUDES(mutex_);
  // Of all intervals that have ended.
  absl::Duration total() HF_EXCLUDES(mutex_);

 private:
  struct Interval {
    CUevent start;
    CUevent end;
  };
  CUevent Take() HF_EXCLUDES(mutex_);
  void Collect() HF_REQUIRES(mutex_);

  const std::shared_ptr<const CudaContext> context_;
  Mutex mutex_;
  std::vector<CUevent> free_ HF_GUARDED_BY(mutex_);
  std::deque<Interval> pending_ HF_GUARDED_BY(mutex_);
  absl::Duration total_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_INTERVAL_TIMER_H_
