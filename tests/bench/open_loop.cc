#include "tests/bench/open_loop.h"

#include <time.h>

#include <algorithm>

#include "common/mutex.h"

namespace hyperframes {
namespace {

int64_t NowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

void SleepUntil(int64_t due_ns) {
  const timespec due = {due_ns / 1000000000, due_ns % 1000000000};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, nullptr);
}

}  // namespace

OpenLoopResult RunOpenLoop(int calls, double per_second, const StartCall& start) {
  Mutex mutex;
  CondVar answered;
  int open = calls;
  std::vector<int64_t> took_ns(static_cast<size_t>(calls), -1);
  OpenLoopResult result;
  int64_t latest_ns = 0;
  const int64_t began = NowNs();
  for (int index = 0; index < calls; ++index) {
    const int64_t due = began + static_cast<int64_t>(index * 1e9 / per_second);
    SleepUntil(due);
    latest_ns = std::max(latest_ns, NowNs() - due);
    start(index, [&, index, due](bool ok) {
      const int64_t took = NowNs() - due;
      MutexLock lock(&mutex);
      if (ok) took_ns[static_cast<size_t>(index)] = took;
      if (--open == 0) answered.NotifyAll();
    });
  }
  MutexLock lock(&mutex);
  answered.Wait(&mutex, [&open] { return open == 0; });
  for (int index = 0; index < calls; ++index) {
    const int64_t took = took_ns[static_cast<size_t>(index)];
    if (took < 0) {
      ++result.failed;
      continue;
    }
    result.indices.push_back(index);
    result.latencies_ms.push_back(static_cast<double>(took) / 1e6);
  }
  result.latest_start = absl::Nanoseconds(latest_ns);
  return result;
}

}  // namespace hyperframes
