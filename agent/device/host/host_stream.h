// A lane of the host backend: a thread with a bounded queue that really copies, and then keeps to
// the speed of the path that it stands for.
#ifndef HYPERFRAMES_AGENT_DEVICE_HOST_HOST_STREAM_H_
#define HYPERFRAMES_AGENT_DEVICE_HOST_HOST_STREAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/device/device.h"
#include "agent/device/host/host_event.h"
#include "common/mutex.h"
#include "common/units.h"

namespace hyperframes {

// Speed of a simulated path. A copy of n bytes takes latency + n / bandwidth, or as long as memcpy
// needs when that is more.
struct PathSpeed {
  Bytes bandwidth = 0;     // Bytes/s; 0 = as fast as memory.
  absl::Duration latency;  // Per copy.
  // Null, or where the nanoseconds of copies are added up for several lanes.
  std::shared_ptr<std::atomic<int64_t>> busy_ns = nullptr;
};

// Thread-safe. A producer that finds the queue full blocks until the lane has taken a command.
class HostStream final : public Stream {
 public:
  static constexpr size_t kQueueCapacity = 4096;

  explicit HostStream(PathSpeed speed, size_t queue_capacity = kQueueCapacity);
  ~HostStream() override;  // Finishes what was queued. No other thread may be queueing then.

  // InvalidArgument: bytes < 0, or a null range with bytes > 0.
  absl::Status Copy(void* to, const void* from, Bytes bytes) override HF_EXCLUDES(mutex_);
  // Runs at the speed of memory: a fill is no traffic on the path.
  absl::Status Fill(void* to, uint8_t value, Bytes bytes) override HF_EXCLUDES(mutex_);
  // InvalidArgument: a null event. An event that is already done costs nothing.
  absl::Status WaitFor(std::shared_ptr<const Event> event) override HF_EXCLUDES(mutex_);
  std::shared_ptr<const Event> Record() override HF_EXCLUDES(mutex_);
  // InvalidArgument: a negative or infinite delay.
  absl::Status Delay(absl::Duration delay) override HF_EXCLUDES(mutex_);
  absl::Status PostWord(SharedWord* word, uint32_t number) override HF_EXCLUDES(mutex_);
  absl::Status AwaitWord(const SharedWord* word, uint32_t number) override HF_EXCLUDES(mutex_);
  absl::Duration copy_busy() const override HF_EXCLUDES(mutex_);

 private:
  enum class Kind { kCopy, kFill, kWaitFor, kRecord, kDelay, kPostWord, kAwaitWord };
  struct Command {
    Kind kind;
    void* to = nullptr;
    const void* from = nullptr;
    Bytes bytes = 0;
    uint8_t value = 0;
    uint32_t number = 0;
    int64_t delay_ns = 0;
    int64_t queued_at_ns = 0;
    std::shared_ptr<const Event> wait_for = nullptr;
    std::shared_ptr<HostEvent> record = nullptr;
  };

  void Push(Command command) HF_EXCLUDES(mutex_);
  void Run();
  // Returns the nanoseconds for which a copy occupied the path; 0 for everything else.
  int64_t Execute(Command* command);
  // Occupies the path for `duration_ns` from the later of its last use and `ready_at_ns`, and
  // returns for how long it really was occupied. Deadlines build on deadlines and not on the time
  // of waking up, so oversleeping does not add up.
  int64_t Occupy(int64_t duration_ns, int64_t ready_at_ns);

  const PathSpeed speed_;
  const size_t queue_capacity_;

  // Used by the lane's thread alone.
  int64_t path_free_at_ns_ = 0;
  int64_t last_wait_ended_ns_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Command> queue_ HF_GUARDED_BY(mutex_);
  bool executing_ HF_GUARDED_BY(mutex_) = false;
  bool closing_ HF_GUARDED_BY(mutex_) = false;
  absl::Duration copy_busy_ HF_GUARDED_BY(mutex_);

  std::thread thread_;  // Last: starts when everything above is ready.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_HOST_HOST_STREAM_H_
