// Calls at a fixed rate, whether or not earlier ones have been answered: what a fleet does to a
// coordinator. Latency counts from the moment a call was due, so that a stall shows in every call
// behind it.
#ifndef HYPERFRAMES_TESTS_BENCH_OPEN_LOOP_H_
#define HYPERFRAMES_TESTS_BENCH_OPEN_LOOP_H_

#include <functional>
#include <vector>

#include "absl/time/time.h"

namespace hyperframes {

// Starts call number `index` and returns at once; `done(ok)` is called once, from any thread.
using StartCall = std::function<void(int index, std::function<void(bool ok)> done)>;

struct OpenLoopResult {
  std::vector<double> latencies_ms;  // Of calls that succeeded, in the order of their numbers.
  std::vector<int> indices;          // Their numbers.
  int failed = 0;
  absl::Duration latest_start;  // How far behind schedule this machine ever started a call.
};

// Returns once every call has been answered.
OpenLoopResult RunOpenLoop(int calls, double per_second, const StartCall& start);

}  // namespace hyperframes

#endif  // HYPERFRAMES_TESTS_BENCH_OPEN_LOOP_H_
