// Measures collectives among this process's GPUs. One process and one thread for all of them: calls
// are grouped, communicators are non-blocking, and every wait is a look with the deadline in view,
// so what hangs on the GPUs does not hang the caller. A call of NCCL or the driver that never
// returns does: whoever cannot afford it measures in a process that can be killed, which also gives
// back what a hanging collective holds. This header needs no toolkit.
#ifndef HYPERFRAMES_AGENT_DEVICE_NCCL_COLLECTIVE_PROBE_H_
#define HYPERFRAMES_AGENT_DEVICE_NCCL_COLLECTIVE_PROBE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/nccl/bus_bandwidth.h"
#include "agent/device/nccl/nccl_library.h"
#include "common/clock.h"
#include "common/units.h"

namespace hyperframes {

struct CollectiveSpeed {
  double bus_bytes_per_second = 0;
  absl::Duration latency;  // Of a few bytes.
  Bytes largest = 0;       // Bytes per GPU that the speed is of.
};

class CollectiveProbe {
 public:
  // Opens a context on each of the machine's GPUs, all at once, and a buffer of `most_bytes` or of
  // a quarter of what is free there. OutOfRange: that is under 1 MiB. Unimplemented: no CUDA in
  // this build. InvalidArgument: fewer than two GPUs. `machine` and `library` outlive the probe.
  static absl::StatusOr<std::unique_ptr<CollectiveProbe>> Open(const CudaMachine* machine,
                                                               const NcclLibrary* library,
                                                               Bytes most_bytes,
                                                               const Clock* clock);
  // What a hanging collective holds is left to the end of the process.
  virtual ~CollectiveProbe() = default;

  // Makes the communicators. DeadlineExceeded: not all are connected by then; else NCCL's error.
  virtual absl::Status Connect(absl::Time deadline) = 0;
  // Runs it once with a few bytes: the first one makes connections, and is no measure of anything.
  virtual absl::Status WarmUp(Collective collective, absl::Time deadline) = 0;
  // Four times as many bytes each time, for as long as there is time for it. DeadlineExceeded: one
  // of them was not over even a seventh of a second after.
  virtual absl::StatusOr<CollectiveSpeed> Measure(Collective collective, absl::Time deadline) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_NCCL_COLLECTIVE_PROBE_H_
