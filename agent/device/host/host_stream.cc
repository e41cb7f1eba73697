#include "agent/device/host/host_stream.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

void SleepUntilNs(int64_t deadline_ns) {
  const timespec deadline = {static_cast<time_t>(deadline_ns / 1000000000),
                             static_cast<long>(deadline_ns % 1000000000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
  }
}

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

HostStream::HostStream(PathSpeed speed, size_t queue_capacity)
    : speed_(std::move(speed)), queue_capacity_(queue_capacity), thread_([this] { Run(); }) {}

HostStream::~HostStream() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

absl::Status HostStream::Copy(void* to, const void* from, Bytes bytes) {
  absl::Status status = CheckRange("copy", to, from, bytes);
  if (!status.ok()) return status;
  Command command{Kind::kCopy};
  command.to = to;
  command.from = from;
  command.bytes = bytes;
  Push(std::move(command));
  return absl::OkStatus();
}

absl::Status HostStream::Fill(void* to, uint8_t value, Bytes bytes) {
  absl::Status status = CheckRange("fill", to, to, bytes);
  if (!status.ok()) return status;
  Command command{Kind::kFill};
  command.to = to;
  command.value = value;
  command.bytes = bytes;
  Push(std::move(command));
  return absl::OkStatus();
}

absl::Status HostStream::WaitFor(std::shared_ptr<const Event> event) {
  if (event == nullptr) {
    return absl::InvalidArgumentError("cannot wait for a null event: record one first");
  }
  if (event->Done()) return absl::OkStatus();
  Command command{Kind::kWaitFor};
  command.wait_for = std::move(event);
  Push(std::move(command));
  return absl::OkStatus();
}

std::shared_ptr<const Event> HostStream::Record() {
  {
    MutexLock lock(&mutex_);
    if (queue_.empty() && !executing_) return HostEvent::AlreadyDone();
  }
  auto event = std::make_shared<HostEvent>();
  Command command{Kind::kRecord};
  command.record = event;
  Push(std::move(command));
  return event;
}

absl::Status HostStream::Delay(absl::Duration delay) {
  if (delay < absl::ZeroDuration() || delay == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot delay a stream by ",
                                                   absl::FormatDuration(delay),
                                                   ": give a finite duration of 0 or more"));
  }
  Command command{Kind::kDelay};
  command.delay_ns = absl::ToInt64Nanoseconds(delay);
  Push(std::move(command));
  return absl::OkStatus();
}

absl::Status HostStream::PostWord(SharedWord* word, uint32_t number) {
  Command command{Kind::kPostWord};
  command.to = word;
  command.number = number;
  Push(std::move(command));
  return absl::OkStatus();
}

absl::Status HostStream::AwaitWord(const SharedWord* word, uint32_t number) {
  Command command{Kind::kAwaitWord};
  command.from = word;
  command.number = number;
  Push(std::move(command));
  return absl::OkStatus();
}

absl::Duration HostStream::copy_busy() const {
  MutexLock lock(&mutex_);
  return copy_busy_;
}

void HostStream::Push(Command command) {
  command.queued_at_ns = NowNs();
  MutexLock lock(&mutex_);
  changed_.Wait(&mutex_, [this] {
    mutex_.AssertHeld();
    return queue_.size() < queue_capacity_;
  });
  queue_.push_back(std::move(command));
  changed_.NotifyAll();
}

void HostStream::Run() {
  // Default slack lets the kernel wake this thread 50 us late: more than a small copy takes.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  while (true) {
    Command command{Kind::kRecord};
    {
      MutexLock lock(&mutex_);
      changed_.Wait(&mutex_, [this] {
        mutex_.AssertHeld();
        return closing_ || !queue_.empty();
      });
      if (queue_.empty()) return;
      command = std::move(queue_.front());
      queue_.pop_front();
      executing_ = true;
      if (queue_.size() + 1 == queue_capacity_) changed_.NotifyAll();
    }
    const int64_t busy_ns = Execute(&command);
    if (speed_.busy_ns != nullptr) speed_.busy_ns->fetch_add(busy_ns, std::memory_order_relaxed);
    MutexLock lock(&mutex_);
    copy_busy_ += absl::Nanoseconds(busy_ns);
    executing_ = false;
  }
}

int64_t HostStream::Execute(Command* command) {
  const int64_t ready_at_ns = std::max(command->queued_at_ns, last_wait_ended_ns_);
  switch (command->kind) {
    case Kind::kCopy: {
      const int64_t started_ns = NowNs();
      if (command->bytes > 0) std::memcpy(command->to, command->from, command->bytes);
      int64_t duration_ns = absl::ToInt64Nanoseconds(speed_.latency);
      if (speed_.bandwidth > 0) {
        duration_ns += static_cast<int64_t>(static_cast<double>(command->bytes) * 1e9 /
                                            static_cast<double>(speed_.bandwidth));
      }
      return duration_ns > 0 ? Occupy(duration_ns, ready_at_ns) : NowNs() - started_ns;
    }
    case Kind::kFill:
      if (command->bytes > 0) std::memset(command->to, command->value, command->bytes);
      return 0;
    case Kind::kWaitFor:
      if (command->wait_for->Done()) return 0;
      command->wait_for->Synchronize();
      last_wait_ended_ns_ = NowNs();
      return 0;
    case Kind::kRecord:
      command->record->Set();
      return 0;
    case Kind::kDelay:
      if (command->delay_ns > 0) Occupy(command->delay_ns, ready_at_ns);
      return 0;
    case Kind::kPostWord:
      hyperframes::PostWord(static_cast<SharedWord*>(command->to), command->number);
      return 0;
    case Kind::kAwaitWord:
      hyperframes::AwaitWord(*static_cast<const SharedWord*>(command->from), command->number,
                             /*ended=*/nullptr);
      last_wait_ended_ns_ = NowNs();
      return 0;
  }
  return 0;
}

int64_t HostStream::Occupy(int64_t duration_ns, int64_t ready_at_ns) {
  const int64_t started_ns = std::max(path_free_at_ns_, ready_at_ns);
  const int64_t deadline_ns = started_ns + duration_ns;
  const int64_t now_ns = NowNs();
  if (now_ns < deadline_ns) SleepUntilNs(deadline_ns);
  // Where memory was slower than the path, the path counts as used until now.
  path_free_at_ns_ = std::max(deadline_ns, now_ns);
  return path_free_at_ns_ - started_ns;
}

}  // namespace hyperframes
