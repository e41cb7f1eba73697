// Measures the path between two devices of this process: memory borrowed on both, a lane, copies.
#ifndef HYPERFRAMES_AGENT_DEVICE_PATH_PROBE_H_
#define HYPERFRAMES_AGENT_DEVICE_PATH_PROBE_H_

#include "absl/status/statusor.h"
#include "agent/device/device.h"
#include "agent/device/link_probe.h"
#include "common/frame.h"

namespace hyperframes {

// From or into (`direction`, as seen from `gpu`) memory of `other`, which is a peer or host memory
// (`tier`), with at most a quarter of what is free on either. OutOfRange: there is less than 256
// KiB to measure with. Else codes as Device::Allocate, Device::Map and Memory::WaitUntilUsable.
// Makes a context of `gpu` on CUDA.
absl::StatusOr<LinkMeasurement> ProbePath(Device* gpu, Device* other, Direction direction,
                                          Tier tier, LinkProbeOptions options);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_PATH_PROBE_H_
