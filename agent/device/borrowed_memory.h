// Memory of one device for the use of another, inside one process: what an embedded process does
// instead of asking an agent for a lease.
#ifndef HYPERFRAMES_AGENT_DEVICE_BORROWED_MEMORY_H_
#define HYPERFRAMES_AGENT_DEVICE_BORROWED_MEMORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "agent/device/device.h"
#include "common/units.h"

namespace hyperframes {

// Allocates `bytes` on `lender` and makes them usable by `user`, which may be the same device. Host
// memory may still be on its way to being pinned: see Memory::WaitUntilUsable. Given back, on the
// lender too, with the object. Codes as Device::Allocate and Device::Map.
absl::StatusOr<std::unique_ptr<Memory>> BorrowMemory(Device* user, Device* lender, Bytes bytes);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_BORROWED_MEMORY_H_
