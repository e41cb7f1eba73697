// How fast a collective was, in the unit that compares with what its links promise.
#ifndef HYPERFRAMES_AGENT_DEVICE_NCCL_BUS_BANDWIDTH_H_
#define HYPERFRAMES_AGENT_DEVICE_NCCL_BUS_BANDWIDTH_H_

#include "absl/time/time.h"
#include "common/units.h"

namespace hyperframes {

enum class Collective { kAllReduce, kSendReceive };

// Bytes per second over the slowest link, as nccl-tests defines it, so that it compares with what
// the link promises whatever the number of GPUs: bytes / time, times 2 (ranks - 1) / ranks for an
// all-reduce and 1 for a send/recv, where each GPU sends `bytes` to the next one of a ring. Source:
// github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth". Zero for no time.
double BusBytesPerSecond(Collective collective, int ranks, Bytes bytes, absl::Duration time);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_NCCL_BUS_BANDWIDTH_H_
