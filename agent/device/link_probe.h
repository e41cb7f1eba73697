// Measures the speed of a path by really copying over it. It reports what it measured, never what a
// data sheet or an option promises.
#ifndef HYPERFRAMES_AGENT_DEVICE_LINK_PROBE_H_
#define HYPERFRAMES_AGENT_DEVICE_LINK_PROBE_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/device.h"
#include "common/clock.h"
#include "common/units.h"

namespace hyperframes {

struct LinkProbeOptions {
  Bytes large_bytes = 16 * kMiB;  // At most; a slow path, or smaller memory, gets less.
  int copies = 7;                 // Timed copies per size, at most; the median counts.
  // No copy is started that would end later, judged by the ones before. The first small copy
  // always runs.
  absl::Duration time_limit = absl::Milliseconds(250);
  const Clock* clock = MonotonicClock();
};

struct LinkMeasurement {
  double bytes_per_second = 0;  // Of the largest copies, with their latency taken off.
  absl::Duration latency;       // What is left of a small copy without its bytes.
  Bytes largest_copy = 0;
  int copies = 0;  // Timed, of both sizes.
};

// Copies from `from` to `to` through `stream`, and waits for each copy: the caller's thread blocks
// for at most about options.time_limit. InvalidArgument: less than 4 KiB on either side, or limits
// that allow no copy. The content of `to` is overwritten.
absl::StatusOr<LinkMeasurement> ProbeLink(Stream* stream, const Memory& to, const Memory& from,
                                          const LinkProbeOptions& options = {});

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_LINK_PROBE_H_
