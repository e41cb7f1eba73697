#include "common/shutdown.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace hyperframes {
namespace {

sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

ShutdownSignal::ShutdownSignal() {
  const sigset_t set = EndingSignals();
  if (pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0) {
    signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    notified_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  if (!signals_.valid() || !notified_.valid()) {
    std::perror("cannot wait for signals");
    std::abort();
  }
}

void ShutdownSignal::Wait() {
  pollfd both[2] = {{signals_.get(), POLLIN, 0}, {notified_.get(), POLLIN, 0}};
  while (poll(both, 2, /*timeout=*/-1) < 0 && errno == EINTR) {
  }
  signalfd_siginfo taken;
  // Takes the signals that ended the wait, or they would end the process once unblocked.
  while (read(signals_.get(), &taken, sizeof(taken)) > 0) {
  }
  UnblockInChild();
}

void ShutdownSignal::Notify() {
  const uint64_t one = 1;
  // Can only fail when it was notified 2^64 - 2 times, and then Wait returns anyway.
  if (write(notified_.get(), &one, sizeof(one)) < 0) return;
}

void ShutdownSignal::UnblockInChild() {
  const sigset_t set = EndingSignals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace hyperframes
