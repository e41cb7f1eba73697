// Writes the counters page (agent/telemetry/counters_page.h) of this process: what engines count
// and what only the front knows. One per machine, so that counters stay monotonic when an engine is
// closed and the next one, under a new plan, starts from zero.
#ifndef HYPERFRAMES_CLIENT_C_COUNTERS_WRITER_H_
#define HYPERFRAMES_CLIENT_C_COUNTERS_WRITER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "agent/device/device.h"
#include "agent/engine/frame_engine.h"
#include "agent/telemetry/counters_page.h"
#include "common/mutex.h"

namespace hyperframes {

// Thread-safe. Readers of the page are never blocked.
class CountersWriter {
 public:
  // A fresh page in a sealed memfd. Internal: the kernel refused.
  static absl::StatusOr<std::unique_ptr<CountersWriter>> Create();

  // Owned by this object; hand over a duplicate.
  int descriptor() const { return memory_->descriptor(); }
  const CountersPage& page() const { return *page_; }

  // What the living engine counts now.
  void Publish(const EngineStats& stats) HF_EXCLUDES(mutex_);
  // The engine's last words: its counters become part of the base, its gauges go to zero.
  void Retire(const EngineStats& stats) HF_EXCLUDES(mutex_);

  struct FrontReport {
    int64_t steps = 0;
    Bytes activation_bytes = 0;
    Bytes activation_peak_bytes = 0;
    int64_t recompute_ns = 0;
    Bytes predicted_peak_bytes = 0;
  };
  void Report(const FrontReport& report);
  // Totals of one pipeline stage. InvalidArgument: a stage outside 0 to kMostStages - 1.
  absl::Status ReportMicroBatches(int stage, int64_t count, int64_t run_ns, int64_t wait_ns);

 private:
  explicit CountersWriter(std::unique_ptr<Memory> memory);
  void Write(const EngineStats& stats) HF_REQUIRES(mutex_);

  const std::unique_ptr<Memory> memory_;
  CountersPage* const page_;
  Mutex mutex_;
  EngineStats base_ HF_GUARDED_BY(mutex_);  // Of engines that were closed.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_C_COUNTERS_WRITER_H_
