// Events of the host backend: a shared flag that a lane's thread sets and anyone may wait for.
#ifndef HYPERFRAMES_AGENT_DEVICE_HOST_HOST_EVENT_H_
#define HYPERFRAMES_AGENT_DEVICE_HOST_HOST_EVENT_H_

#include <atomic>
#include <memory>

#include "agent/device/device.h"
#include "common/mutex.h"

namespace hyperframes {

// Set once, by the lane that recorded it. Thread-safe.
class HostEvent final : public Event {
 public:
  bool Done() const override { return done_.load(std::memory_order_acquire); }

  void Synchronize() const override HF_EXCLUDES(mutex_) {
    if (Done()) return;
    MutexLock lock(&mutex_);
    changed_.Wait(&mutex_, [this] { return Done(); });
  }

  // Everything that the setting thread wrote before is visible to whoever saw Done.
  void Set() HF_EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    done_.store(true, std::memory_order_release);
    changed_.NotifyAll();
  }

  // An event that is already done, shared by everybody who needs one.
  static std::shared_ptr<const Event> AlreadyDone();

 private:
  std::atomic<bool> done_{false};
  mutable Mutex mutex_;
  mutable CondVar changed_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_HOST_HOST_EVENT_H_
