// Room: agent/telemetry. Reads the pages that workers share and turns what this node knows into
// metrics. It must not know gRPC, or who asks.
//
// A page comes from a worker and is therefore not trusted: it is copied with pread (a mapping could
// be truncated under us, which would end the agent), and every value is checked.
#ifndef HYPERFRAMES_AGENT_TELEMETRY_COUNTERS_READER_H_
#define HYPERFRAMES_AGENT_TELEMETRY_COUNTERS_READER_H_

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/frame.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace hyperframes {

// Micro-batches that have run on one pipeline stage.
struct StageReading {
  int64_t micro_batches = 0;
  double run_s = 0;
  double wait_s = 0;
};

// One reading of a CountersPage; its comments say what each value means. None is negative.
struct CountersReading {
  int64_t steps = 0;
  Bytes bytes_copied[kDirectionCount][kTierCount] = {};
  int64_t copies[kDirectionCount][kTierCount] = {};
  double copy_busy_s[kDirectionCount][kTierCount] = {};
  double exposed_wait_s = 0;
  double recompute_s = 0;
  int64_t overflow_to_host = 0;
  int64_t overflow_to_keep = 0;
  Bytes activation_bytes = 0;
  Bytes activation_peak_bytes = 0;
  Bytes stash_bytes = 0;
  Bytes reload_bytes = 0;
  Bytes frame_bytes[kTierCount] = {};
  Bytes predicted_peak_bytes = 0;
  std::map<int, StageReading> stages;  // Only those on which something has run.

  // Adds another worker's: totals and gauges alike.
  void Add(const CountersReading& other);
  // What stays once the worker has gone: the totals.
  void DropGauges();
};

// Never blocks, whatever the descriptor is. InvalidArgument: not one page of shared memory, another
// magic. FailedPrecondition: another version.
absl::StatusOr<CountersReading> ReadCounters(int descriptor);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TELEMETRY_COUNTERS_READER_H_
