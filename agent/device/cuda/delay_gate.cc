#include "agent/device/cuda/delay_gate.h"

#include <sys/prctl.h>

#include <utility>

#include "absl/time/clock.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kPoll = absl::Microseconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<DelayGate>> DelayGate::Create(
    std::shared_ptr<const CudaContext> context, CUstream stream) {
  const CurrentContext current(*context);
  void* words = nullptr;
  HF_CUDA_RETURN_IF_ERROR(context->driver(), context->uuid(), cuMemHostAlloc, &words, sizeof(Words),
                          CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  return std::unique_ptr<DelayGate>(new DelayGate(std::move(context), stream, new (words) Words));
}

DelayGate::DelayGate(std::shared_ptr<const CudaContext> context, CUstream stream, Words* words)
    : context_(std::move(context)), stream_(stream), words_(words), thread_([this] { Run(); }) {}

DelayGate::~DelayGate() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  const CurrentContext current(*context_);
  context_->driver().cuMemFreeHost(words_);
}

absl::Status DelayGate::Queue(absl::Duration delay) {
  const CudaDriver& driver = context_->driver();
  const CurrentContext current(*context_);
  MutexLock order(&queueing_);
  uint32_t number = 0;
  {
    MutexLock lock(&mutex_);
    number = NextNumber(queued_);
  }
  // With unified addressing pinned memory has one address for both sides.
  HF_CUDA_RETURN_IF_ERROR(driver, context_->uuid(), cuStreamWriteValue32, stream_,
                          reinterpret_cast<CUdeviceptr>(&words_->arrived), number,
                          CU_STREAM_WRITE_VALUE_DEFAULT);
  {
    MutexLock lock(&mutex_);
    queued_ = number;
    pending_.push_back({number, delay});
    changed_.NotifyAll();
  }
  return driver.Check(
      driver.cuStreamWaitValue32(stream_, reinterpret_cast<CUdeviceptr>(&words_->released), number,
                                 CU_STREAM_WAIT_VALUE_GEQ),
      "cuStreamWaitValue32", context_->uuid());
}

void DelayGate::Run() {
  prctl(PR_SET_TIMERSLACK, 1000UL);
  while (true) {
    Pending next;
    {
      MutexLock lock(&mutex_);
      changed_.Wait(&mutex_, [this] {
        mutex_.AssertHeld();
        return closing_ || !pending_.empty();
      });
      if (closing_) break;
      next = pending_.front();
      pending_.pop_front();
    }
    while (!Reached(words_->arrived.load(std::memory_order_acquire), next.number)) {
      absl::SleepFor(kPoll);
      MutexLock lock(&mutex_);
      if (closing_) break;  // The stream has finished, or its context is broken.
    }
    absl::SleepFor(next.delay);
    words_->released.store(next.number, std::memory_order_release);
  }
  MutexLock lock(&mutex_);
  words_->released.store(queued_, std::memory_order_release);  // Nobody may be left waiting.
}

}  // namespace hyperframes
