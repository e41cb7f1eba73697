#include "agent/device/cuda/interval_timer.h"

namespace hyperframes {

IntervalTimer::~IntervalTimer() {
  const CurrentContext current(*context_);
  for (const Interval& interval : pending_) {
    free_.push_back(interval.start);
    free_.push_back(interval.end);
  }
  for (const CUevent event : free_) context_->driver().cuEventDestroy(event);
}

CUevent IntervalTimer::Take() {
  MutexLock lock(&mutex_);
  if (!free_.empty()) {
    const CUevent event = free_.back();
    free_.pop_back();
    return event;
  }
  CUevent event = nullptr;
  const CudaDriver& driver = context_->driver();
  return driver.cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS ? event : nullptr;
}

CUevent IntervalTimer::Start(CUstream stream) {
  const CurrentContext current(*context_);
  const CUevent event = Take();
  if (event != nullptr) context_->driver().cuEventRecord(event, stream);
  return event;
}

void IntervalTimer::Stop(CUevent start, CUstream stream) {
  if (start == nullptr) return;
  const CurrentContext current(*context_);
  const CUevent end = Take();
  if (end != nullptr) context_->driver().cuEventRecord(end, stream);
  MutexLock lock(&mutex_);
  if (end == nullptr) {
    free_.push_back(start);
    return;
  }
  pending_.push_back({start, end});
  if (pending_.size() > kMostPending) Collect();
  while (pending_.size() > kMostPending) {
    free_.push_back(pending_.front().start);
    free_.push_back(pending_.front().end);
    pending_.pop_front();
  }
}

absl::Duration IntervalTimer::total() {
  const CurrentContext current(*context_);
  MutexLock lock(&mutex_);
  Collect();
  return total_;
}

void IntervalTimer::Collect() {
  const CudaDriver& driver = context_->driver();
  while (!pending_.empty()) {
    const Interval& oldest = pending_.front();
    if (driver.cuEventQuery(oldest.end) == CUDA_ERROR_NOT_READY) return;
    float milliseconds = 0;
    if (driver.event_elapsed_time(&milliseconds, oldest.start, oldest.end) == CUDA_SUCCESS) {
      total_ += absl::Milliseconds(milliseconds);
    }
    free_.push_back(oldest.start);
    free_.push_back(oldest.end);
    pending_.pop_front();
  }
}

}  // namespace hyperframes
