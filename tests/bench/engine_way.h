// What the engine benchmark measures on: one way from a GPU to a lender, and the clocks.
#ifndef HYPERFRAMES_TESTS_BENCH_ENGINE_WAY_H_
#define HYPERFRAMES_TESTS_BENCH_ENGINE_WAY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/device/device.h"
#include "agent/engine/frame_engine.h"
#include "common/units.h"

namespace hyperframes {

constexpr Bytes kBytes = 256 * kMiB;  // Per round.

// One way from the computing GPU to a lender, with the engine and a bare lane on it.
struct Way {
  Device* gpu = nullptr;
  Tier tier = Tier::kHost;
  std::string name;  // "peer" or "host".
  std::unique_ptr<FrameEngine> engine;
  std::unique_ptr<Memory> lease;   // For plain copies: another one than the engine's.
  std::unique_ptr<Memory> source;  // On the computing GPU.
  std::unique_ptr<Memory> back;
  std::unique_ptr<Stream> out;
  std::unique_ptr<Stream> in;
  double pinning_s_per_gib = 0;  // Of the engine's lease; 0 for peers.
};

// Seconds that all bytes of a round took.
struct Rates {
  double put = 0;
  double fetch = 0;
  double out = 0;  // Plain copies.
  double in = 0;
};

// Opens the way from `gpu` to `lender`. Errors as BorrowMemory and FrameEngine::Create.
absl::StatusOr<Way> OpenWay(Device* gpu, Device* lender, bool is_host);

// Waits until the computing stream has done what it has now, and what it was made to wait for.
absl::Status Finish(Device* gpu);

double Median(std::vector<double> values);
// Of a monotonic clock.
double Seconds();
// That the calling thread has used.
double ThreadCpuMicroseconds();

}  // namespace hyperframes

#endif  // HYPERFRAMES_TESTS_BENCH_ENGINE_WAY_H_
