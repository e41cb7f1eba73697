// One annotated mutex for the whole project. It wraps std::mutex, which ThreadSanitizer understands
// (Debian's absl::Mutex is invisible to it), and carries clang's thread-safety attributes.
//
//   Mutex mutex_;
//   int count_ HF_GUARDED_BY(mutex_) = 0;
//   ...
//   MutexLock lock(&mutex_);
//   changed_.Wait(&mutex_, [this] { return count_ > 0; });
#ifndef HYPERFRAMES_COMMON_MUTEX_H_
#define HYPERFRAMES_COMMON_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

#if defined(__clang__)
#define HF_THREAD_ATTRIBUTE_(x) __attribute__((x))
#else
#define HF_THREAD_ATTRIBUTE_(x)
#endif

#define HF_CAPABILITY(x) HF_THREAD_ATTRIBUTE_(capability(x))
#define HF_SCOPED_CAPABILITY HF_THREAD_ATTRIBUTE_(scoped_lockable)
#define HF_GUARDED_BY(x) HF_THREAD_ATTRIBUTE_(guarded_by(x))
#define HF_PT_GUARDED_BY(x) HF_THREAD_ATTRIBUTE_(pt_guarded_by(x))
#define HF_ACQUIRED_BEFORE(...) HF_THREAD_ATTRIBUTE_(acquired_before(__VA_ARGS__))
#define HF_ACQUIRED_AFTER(...) HF_THREAD_ATTRIBUTE_(acquired_after(__VA_ARGS__))
#define HF_REQUIRES(...) HF_THREAD_ATTRIBUTE_(requires_capability(__VA_ARGS__))
#define HF_EXCLUDES(...) HF_THREAD_ATTRIBUTE_(locks_excluded(__VA_ARGS__))
#define HF_ACQUIRE(...) HF_THREAD_ATTRIBUTE_(acquire_capability(__VA_ARGS__))
#define HF_RELEASE(...) HF_THREAD_ATTRIBUTE_(release_capability(__VA_ARGS__))
#define HF_ASSERT_CAPABILITY(x) HF_THREAD_ATTRIBUTE_(assert_capability(x))
#define HF_NO_THREAD_SAFETY_ANALYSIS HF_THREAD_ATTRIBUTE_(no_thread_safety_analysis)

namespace hyperframes {

class HF_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() HF_ACQUIRE() { mutex_.lock(); }
  void Unlock() HF_RELEASE() { mutex_.unlock(); }
  // Tells the analysis that the caller holds the lock, for lambdas that it cannot see into.
  void AssertHeld() const HF_ASSERT_CAPABILITY(this) {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class HF_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) HF_ACQUIRE(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() HF_RELEASE() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// A condition variable bound to Mutex by the caller's discipline. Predicates run with the lock
// held.
class CondVar {
 public:
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

  template <typename Predicate>
  void Wait(Mutex* mutex, Predicate predicate) HF_REQUIRES(mutex) HF_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock, predicate);
    lock.release();
  }

  // False when `timeout` (real time) passed before the predicate held.
  template <typename Predicate>
  bool WaitFor(Mutex* mutex, absl::Duration timeout, Predicate predicate)
      HF_REQUIRES(mutex) HF_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    // wait_until on the system clock, rather than wait_for: gcc's wait_for uses
    // pthread_cond_clockwait, which ThreadSanitizer of gcc 12 does not intercept.
    const bool held = condition_.wait_until(
        lock, std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout), predicate);
    lock.release();
    return held;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_MUTEX_H_
