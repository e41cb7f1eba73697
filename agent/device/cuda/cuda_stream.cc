#include "agent/device/cuda/cuda_stream.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// What a stream that can no longer be recorded on hands out: its work is over, one way or another.
class EndedEvent final : public Event {
 public:
  bool Done() const override { return true; }
  void Synchronize() const override {}
};

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

absl::Status CheckRange(const char* what, const void* to, const void* from, Bytes bytes) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot queue a ", what, " of ", bytes, " bytes: give 0 or more"));
  }
  if (bytes > 0 && (to == nullptr || from == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot queue a ", what, " of ", bytes, " bytes: one of its ranges is null"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(
    std::shared_ptr<CudaEventPool> events, bool measure) {
  const CudaContext& context = events->context();
  const CurrentContext current(context);
  CUstream stream = nullptr;
  HF_CUDA_RETURN_IF_ERROR(context.driver(), context.uuid(), cuStreamCreate, &stream,
                          CU_STREAM_NON_BLOCKING);
  return std::unique_ptr<CudaStream>(new CudaStream(std::move(events), stream, measure));
}

CudaStream::CudaStream(std::shared_ptr<CudaEventPool> events, CUstream stream, bool measure)
    : events_(std::move(events)),
      stream_(stream),
      timer_(measure ? std::make_unique<IntervalTimer>(events_->shared_context()) : nullptr),
      batches_(context().driver().CanBatch(context().device())) {}

CudaStream::~CudaStream() {
  const CudaDriver& driver = context().driver();
  const CurrentContext current(context());
  const absl::Status finished =
      driver.Check(driver.cuStreamSynchronize(stream_), "cuStreamSynchronize", context().uuid());
  if (!finished.ok()) LOG(WARNING) << "a lane ends with an error: " << finished;
  driver.cuStreamDestroy(stream_);
}

absl::Status CudaStream::Copy(void* to, const void* from, Bytes bytes) {
  HF_RETURN_IF_ERROR(CheckRange("copy", to, from, bytes));
  if (bytes == 0) return absl::OkStatus();
  const CudaDriver& driver = context().driver();
  const CurrentContext current(context());
  const CUevent started = timer_ != nullptr ? timer_->Start(stream_) : nullptr;
  HF_CUDA_RETURN_IF_ERROR(driver, context().uuid(), cuMemcpyAsync, Address(to), Address(from),
                          static_cast<size_t>(bytes), stream_);
  if (timer_ != nullptr) timer_->Stop(started, stream_);
  return absl::OkStatus();
}

absl::Status CudaStream::CopyAll(const std::vector<CopyPart>& parts) {
  if (parts.size() < 2 || !batches_.load(std::memory_order_relaxed)) return Stream::CopyAll(parts);
  std::vector<CUdeviceptr> to;
  std::vector<CUdeviceptr> from;
  std::vector<size_t> sizes;
  to.reserve(parts.size());
  from.reserve(parts.size());
  sizes.reserve(parts.size());
  for (const CopyPart& part : parts) {
    HF_RETURN_IF_ERROR(CheckRange("copy", part.to, part.from, part.bytes));
    if (part.bytes == 0) continue;
    to.push_back(Address(part.to));
    from.push_back(Address(part.from));
    sizes.push_back(static_cast<size_t>(part.bytes));
  }
  if (sizes.empty()) return absl::OkStatus();
  const CudaDriver& driver = context().driver();
  const CurrentContext current(context());
  const CUevent started = timer_ != nullptr ? timer_->Start(stream_) : nullptr;
  const CUresult result =
      driver.CopyBatch(to.data(), from.data(), sizes.data(), sizes.size(), stream_);
  if (timer_ != nullptr) timer_->Stop(started, stream_);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  // What it may have queued is copied twice, which changes nothing. Where the context is broken,
  // the single copies say so.
  batches_.store(false, std::memory_order_relaxed);
  LOG(WARNING) << "small storages are copied one by one from now on: "
               << driver.Check(result, "cuMemcpyBatchAsync", context().uuid());
  return Stream::CopyAll(parts);
}

absl::Status CudaStream::Fill(void* to, uint8_t value, Bytes bytes) {
  HF_RETURN_IF_ERROR(CheckRange("fill", to, to, bytes));
  if (bytes == 0) return absl::OkStatus();
  const CudaDriver& driver = context().driver();
  const CurrentContext current(context());
  return driver.Check(
      driver.cuMemsetD8Async(Address(to), value, static_cast<size_t>(bytes), stream_),
      "cuMemsetD8Async", context().uuid());
}

absl::Status CudaStream::WaitFor(std::shared_ptr<const Event> event) {
  if (event == nullptr) {
    return absl::InvalidArgumentError("cannot wait for a null event: record one first");
  }
  CUevent cuda_event = nullptr;
  HF_RETURN_IF_ERROR(CudaEventOf(*event, &cuda_event));
  if (cuda_event == nullptr) return absl::OkStatus();
  const CudaDriver& driver = context().driver();
  const CurrentContext current(context());
  return driver.Check(driver.cuStreamWaitEvent(stream_, cuda_event, CU_EVENT_WAIT_DEFAULT),
                      "cuStreamWaitEvent", context().uuid());
}

std::shared_ptr<const Event> CudaStream::Record() {
  absl::StatusOr<std::shared_ptr<const CudaEvent>> event = events_->Record(stream_);
  if (event.ok()) return *std::move(event);
  // Nobody may take work for done that still runs. Only a broken context comes here.
  LOG(ERROR) << "a lane cannot record events any more: " << event.status();
  const CurrentContext current(context());
  context().driver().cuStreamSynchronize(stream_);
  return std::make_shared<EndedEvent>();
}

absl::Status CudaStream::Delay(absl::Duration delay) {
  if (delay < absl::ZeroDuration() || delay == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot delay a stream by ",
                                                   absl::FormatDuration(delay),
                                                   ": give a finite duration of 0 or more"));
  }
  MutexLock lock(&mutex_);
  if (gate_ == nullptr) {
    HF_ASSIGN_OR_RETURN(gate_, DelayGate::Create(events_->shared_context(), stream_));
  }
  return gate_->Queue(delay);
}

// The driver puts a fence of the whole system before the store: whoever sees the word sees what the
// stream wrote before it.
absl::Status CudaStream::PostWord(SharedWord* word, uint32_t number) {
  const CudaDriver& driver = context().driver();
  const CurrentContext current(context());
  return driver.Check(
      driver.cuStreamWriteValue32(stream_, Address(word), number, CU_STREAM_WRITE_VALUE_DEFAULT),
      "cuStreamWriteValue32", context().uuid());
}

absl::Status CudaStream::AwaitWord(const SharedWord* word, uint32_t number) {
  const CudaDriver& driver = context().driver();
  const CurrentContext current(context());
  return driver.Check(
      driver.cuStreamWaitValue32(stream_, Address(word), number, CU_STREAM_WAIT_VALUE_GEQ),
      "cuStreamWaitValue32", context().uuid());
}

absl::Duration CudaStream::copy_busy() const {
  return timer_ != nullptr ? timer_->total() : absl::ZeroDuration();
}

}  // namespace hyperframes
