// Orderly end of a daemon on SIGTERM or SIGINT, without work inside a signal handler.
#ifndef HYPERFRAMES_COMMON_SHUTDOWN_H_
#define HYPERFRAMES_COMMON_SHUTDOWN_H_

#include "common/unique_fd.h"

namespace hyperframes {

class ShutdownSignal {
 public:
  // Blocks SIGTERM and SIGINT in this thread and in every thread it starts later: construct it
  // first in main. Aborts when the kernel refuses.
  ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

  // Returns once a signal has come or Notify was called, and lets signals through again on the
  // calling thread: a second Ctrl-C ends a shutdown that hangs. One thread.
  void Wait();
  // Makes Wait return, now or later. Thread-safe.
  void Notify();

  // A child inherits the blocked mask: call between fork and exec. Async-signal-safe.
  static void UnblockInChild();

 private:
  UniqueFd signals_;
  UniqueFd notified_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_SHUTDOWN_H_
