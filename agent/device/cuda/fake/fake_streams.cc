// Streams and events of the fake driver. Work runs on a thread for each stream, as late as it likes
// and in order within the stream alone, so that a missing event shows; a queue is as deep as the
// real driver's, and whoever fills it waits, with the context locked.
#include <cuda.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "agent/device/cuda/fake/fake_contexts.h"
#include "agent/device/cuda/fake/fake_gpus.h"
#include "agent/device/cuda/fake/fake_memory.h"

namespace hyperframes {

constexpr size_t kFakeQueue = 1024;

// One record of an event. Streams that wait keep the one that they were told to wait for.
struct FakeRecord {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  long long at_ns = 0;

  void Finish() {
    const std::lock_guard<std::mutex> lock(mutex);
    done = true;
    at_ns = FakeNow();
    changed.notify_all();
  }
  bool Done() {
    const std::lock_guard<std::mutex> lock(mutex);
    return done;
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return done; });
  }
};

struct FakeEvent {
  FakeContext* context;
  bool times;
  std::mutex mutex;
  std::shared_ptr<FakeRecord> latest;  // Null: never recorded, which counts as done.

  std::shared_ptr<FakeRecord> Latest() {
    const std::lock_guard<std::mutex> lock(mutex);
    return latest;
  }
};

struct QueuedStream : FakeStream, std::enable_shared_from_this<QueuedStream> {
  explicit QueuedStream(FakeContext* of) : context(of) {}
  FakeContext* const context;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool ended = false;

  void Start() {
    std::thread([self = shared_from_this()] { self->Run(); }).detach();
  }
  void Run() {
    while (true) {
      std::function<void()> next;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return ended || !queue.empty(); });
        if (queue.empty()) return;
        next = std::move(queue.front());
      }
      next();
      next = nullptr;  // What it held is let go before anybody learns that it is over.
      const std::lock_guard<std::mutex> lock(mutex);
      queue.pop_front();
      changed.notify_all();
    }
  }
  void Add(std::function<void()> work) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return queue.size() < kFakeQueue; });
    queue.push_back(std::move(work));
    changed.notify_all();
  }
};

namespace {

std::mutex handles_mutex;
std::set<void*>& Handles() {
  static auto& handles = *new std::set<void*>();
  return handles;
}
std::set<std::shared_ptr<QueuedStream>>& Streams() {
  static auto& streams = *new std::set<std::shared_ptr<QueuedStream>>();
  return streams;
}
bool IsHandle(void* handle) {
  const std::lock_guard<std::mutex> lock(handles_mutex);
  return Handles().count(handle) > 0;
}

void Pause() {
  const timespec pause = {0, 20000};
  nanosleep(&pause, nullptr);
}

// NOLINTNEXTLINE(performance-no-int-to-ptr)
void* AsPointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// The stream behind a handle, for work on it: null is the current context's default stream.
CUresult StreamFor(CUstream handle, QueuedStream** stream) {
  FakeContext* const context = CurrentFakeContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle == nullptr) {
    const std::lock_guard<std::mutex> lock(handles_mutex);
    if (context->default_stream == nullptr) {
      context->default_stream = std::make_shared<QueuedStream>(context);
      context->default_stream->Start();
    }
    *stream = context->default_stream.get();
    return CUDA_SUCCESS;
  }
  if (!IsHandle(handle)) return CUDA_ERROR_INVALID_HANDLE;
  *stream = static_cast<QueuedStream*>(reinterpret_cast<FakeStream*>(handle));
  return (*stream)->context == context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult Queue(CUstream handle, std::function<void()> work) {
  QueuedStream* stream = nullptr;
  if (const CUresult code = StreamFor(handle, &stream); code != CUDA_SUCCESS) return code;
  const std::lock_guard<std::mutex> lock(stream->context->queueing);
  stream->Add(std::move(work));
  return CUDA_SUCCESS;
}

CUresult EventOf(CUevent handle, FakeEvent** event) {
  if (!IsHandle(handle)) return CUDA_ERROR_INVALID_HANDLE;
  *event = reinterpret_cast<FakeEvent*>(handle);
  return CUDA_SUCCESS;
}

// A word that a stream may read or write.
CUresult WordAt(CUdeviceptr address, FakeAddress* word) {
  FakeContext* const context = CurrentFakeContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *word = LookUp(address, sizeof(uint32_t), context->device);
  return address % sizeof(uint32_t) == 0 && word->access == FakeAccess::kDevice
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

struct BatchedCopy {
  CUdeviceptr to;
  CUdeviceptr from;
  size_t bytes;
  std::shared_ptr<FakeRange> target;
  std::shared_ptr<FakeRange> source;
};

bool AnyDependsOnAnother(const std::vector<BatchedCopy>& batch) {
  const auto overlap = [](CUdeviceptr a, size_t a_bytes, CUdeviceptr b, size_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
  };
  for (const BatchedCopy& one : batch) {
    for (const BatchedCopy& other : batch) {
      if (overlap(one.to, one.bytes, other.from, other.bytes)) return true;
      if (&one != &other && overlap(one.to, one.bytes, other.to, other.bytes)) return true;
    }
  }
  return false;
}

}  // namespace
}  // namespace hyperframes

using namespace hyperframes;  // NOLINT: the driver's functions are in no namespace.

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  FakeContext* const context = CurrentFakeContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  // What such a stream does to the default stream is not made here.
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_NOT_SUPPORTED;
  const auto made = std::make_shared<QueuedStream>(context);
  made->Start();
  *stream = reinterpret_cast<CUstream>(static_cast<FakeStream*>(made.get()));
  const std::lock_guard<std::mutex> lock(handles_mutex);
  Streams().insert(made);
  Handles().insert(*stream);
  return CUDA_SUCCESS;
}

// Returns at once; what was queued still runs.
CUresult cuStreamDestroy(CUstream handle) {
  if (!IsHandle(handle)) return CUDA_ERROR_INVALID_HANDLE;
  const auto stream =
      static_cast<QueuedStream*>(reinterpret_cast<FakeStream*>(handle))->shared_from_this();
  const std::lock_guard<std::mutex> lock(handles_mutex);
  Handles().erase(handle);
  Streams().erase(stream);
  const std::lock_guard<std::mutex> of_stream(stream->mutex);
  stream->ended = true;
  stream->changed.notify_all();
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  QueuedStream* stream = nullptr;
  if (const CUresult code = StreamFor(handle, &stream); code != CUDA_SUCCESS) return code;
  std::unique_lock<std::mutex> lock(stream->mutex);
  stream->changed.wait(lock, [stream] { return stream->queue.empty(); });
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned) {
  FakeEvent* event = nullptr;
  if (const CUresult code = EventOf(handle, &event); code != CUDA_SUCCESS) return code;
  const std::shared_ptr<FakeRecord> record = event->Latest();
  return Queue(stream, [record] {
    if (record != nullptr) record->Wait();
  });
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  FakeAddress word;
  if (const CUresult code = WordAt(address, &word); code != CUDA_SUCCESS) return code;
  return Queue(stream, [address, value, held = word.held] {
    __atomic_store_n(static_cast<uint32_t*>(AsPointer(address)), value, __ATOMIC_SEQ_CST);
  });
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags) {
  FakeAddress word;
  if (const CUresult code = WordAt(address, &word); code != CUDA_SUCCESS) return code;
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  return Queue(stream, [address, value, held = word.held] {
    const auto* const seen = static_cast<const uint32_t*>(AsPointer(address));
    while (static_cast<int32_t>(__atomic_load_n(seen, __ATOMIC_SEQ_CST) - value) < 0) Pause();
  });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  FakeContext* const context = CurrentFakeContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto* const made = new FakeEvent();
  made->context = context;
  made->times = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = reinterpret_cast<CUevent>(made);
  const std::lock_guard<std::mutex> lock(handles_mutex);
  Handles().insert(made);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent handle) {
  FakeEvent* event = nullptr;
  if (const CUresult code = EventOf(handle, &event); code != CUDA_SUCCESS) return code;
  {
    const std::lock_guard<std::mutex> lock(handles_mutex);
    Handles().erase(event);
  }
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  FakeEvent* event = nullptr;
  QueuedStream* stream = nullptr;
  if (const CUresult code = EventOf(handle, &event); code != CUDA_SUCCESS) return code;
  if (const CUresult code = StreamFor(stream_handle, &stream); code != CUDA_SUCCESS) return code;
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  const auto record = std::make_shared<FakeRecord>();
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    event->latest = record;
  }
  return Queue(stream_handle, [record, stream] {
    while (FakeNow() < stream->busy_until_ns) Pause();
    record->Finish();
  });
}

CUresult cuEventQuery(CUevent handle) {
  FakeEvent* event = nullptr;
  if (const CUresult code = EventOf(handle, &event); code != CUDA_SUCCESS) return code;
  const std::shared_ptr<FakeRecord> record = event->Latest();
  return record == nullptr || record->Done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  FakeEvent* event = nullptr;
  if (const CUresult code = EventOf(handle, &event); code != CUDA_SUCCESS) return code;
  if (const auto record = event->Latest(); record != nullptr) record->Wait();
  return CUDA_SUCCESS;
}

#undef cuEventElapsedTime  // Its old name is the one that is asked for.
CUresult cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  FakeEvent* start = nullptr;
  FakeEvent* end = nullptr;
  if (EventOf(start_handle, &start) != CUDA_SUCCESS || EventOf(end_handle, &end) != CUDA_SUCCESS ||
      !start->times || !end->times || start->Latest() == nullptr || end->Latest() == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!start->Latest()->Done() || !end->Latest()->Done()) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(end->Latest()->at_ns - start->Latest()->at_ns) / 1e6f;
  return CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FakeContext* const context = CurrentFakeContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const FakeAddress target = LookUp(to, bytes, context->device);
  const FakeAddress source = LookUp(from, bytes, context->device);
  if (target.access == FakeAccess::kNone || source.access == FakeAccess::kNone) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult queued = Queue(stream, [to, from, bytes, one = target.held, two = source.held] {
    memcpy(AsPointer(to), AsPointer(from), bytes);
  });
  if (queued != CUDA_SUCCESS) return queued;
  const bool waits =
      target.access == FakeAccess::kPageable || source.access == FakeAccess::kPageable;
  return waits ? cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
// All that a batch is made of is checked before any of it is queued. Its copies run last first: the
// real driver promises no order among them.
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* first_copies,
                            size_t attribute_count, CUstream stream) {
  FakeContext* const context = CurrentFakeContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (FakeGpusAre("unbatched")) return CUDA_ERROR_NOT_SUPPORTED;
  if (stream == nullptr || stream == CU_STREAM_LEGACY || count == 0 || attribute_count == 0 ||
      attribute_count > count || first_copies[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < attribute_count; ++i) {
    if (i > 0 && first_copies[i] <= first_copies[i - 1]) return CUDA_ERROR_INVALID_VALUE;
    if (attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_INVALID) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // The other orders, and what pageable memory does, are not made here.
    if (attributes[i].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  std::vector<BatchedCopy> batch;
  for (size_t i = 0; i < count; ++i) {
    const FakeAddress target = LookUp(to[i], bytes[i], context->device);
    const FakeAddress source = LookUp(from[i], bytes[i], context->device);
    if (bytes[i] == 0 || target.access != FakeAccess::kDevice ||
        source.access != FakeAccess::kDevice) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    batch.push_back({to[i], from[i], bytes[i], target.held, source.held});
  }
  if (AnyDependsOnAnother(batch)) FakeUndefined("copies of one batch depend on each other");
  return Queue(stream, [batch = std::move(batch)] {
    for (auto copy = batch.rbegin(); copy != batch.rend(); ++copy) {
      memcpy(AsPointer(copy->to), AsPointer(copy->from), copy->bytes);
    }
  });
}
#endif

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  FakeContext* const context = CurrentFakeContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const FakeAddress target = LookUp(to, bytes, context->device);
  if (target.access != FakeAccess::kDevice) return CUDA_ERROR_INVALID_VALUE;
  return Queue(stream,
               [to, value, bytes, held = target.held] { memset(AsPointer(to), value, bytes); });
}

}  // extern "C"
