#include "agent/device/cuda/cuda_event.h"

#include <utility>

#include "common/status_macros.h"

namespace hyperframes {

CudaEventPool::~CudaEventPool() {
  const CurrentContext current(*context_);
  for (const CUevent event : free_) context_->driver().cuEventDestroy(event);
}

absl::StatusOr<std::shared_ptr<const CudaEvent>> CudaEventPool::Record(CUstream stream) {
  const CudaDriver& driver = context_->driver();
  CUevent event = nullptr;
  {
    MutexLock lock(&mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  const CurrentContext current(*context_);
  if (event == nullptr) {
    HF_CUDA_RETURN_IF_ERROR(driver, context_->uuid(), cuEventCreate, &event,
                            CU_EVENT_DISABLE_TIMING);
  }
  auto recorded = std::make_shared<CudaEvent>(shared_from_this(), event);
  HF_CUDA_RETURN_IF_ERROR(driver, context_->uuid(), cuEventRecord, event, stream);
  return std::shared_ptr<const CudaEvent>(std::move(recorded));
}

void CudaEventPool::GiveBack(CUevent event) {
  MutexLock lock(&mutex_);
  free_.push_back(event);
}

bool CudaEvent::Done() const {
  if (done_.load(std::memory_order_acquire)) return true;
  const CurrentContext current(pool_->context());
  if (pool_->context().driver().cuEventQuery(event_) == CUDA_ERROR_NOT_READY) return false;
  done_.store(true, std::memory_order_release);
  return true;
}

void CudaEvent::Synchronize() const {
  if (Done()) return;
  const CurrentContext current(pool_->context());
  pool_->context().driver().cuEventSynchronize(event_);
  done_.store(true, std::memory_order_release);
}

absl::Status CudaEventOf(const Event& event, CUevent* cuda_event) {
  *cuda_event = nullptr;
  if (const auto* cuda = dynamic_cast<const CudaEvent*>(&event.OnDevice())) {
    *cuda_event = cuda->event();
    return absl::OkStatus();
  }
  if (event.Done()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a CUDA stream cannot wait for an event of another backend: record one on a CUDA stream");
}

}  // namespace hyperframes
