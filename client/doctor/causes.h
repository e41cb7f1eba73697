// Why a path is slow or closed: the likeliest of the reasons that the facts allow.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_CAUSES_H_
#define HYPERFRAMES_CLIENT_DOCTOR_CAUSES_H_

#include <string>

#include "client/doctor/facts.h"

namespace hyperframes {
namespace doctor {

struct Reason {
  std::string cause;   // A sentence without its full stop.
  std::string remedy;  // Likewise: what to do.
};

// Of a path that could not be measured, or that is far below its promise.
Reason LikelyReason(const PathFacts& path, const Facts& facts);

// The part of a long UUID that tells the GPUs of a node apart.
std::string ShortUuid(const std::string& uuid);
bool HasFallenBack(const GpuFacts& gpu);  // Fewer PCIe lanes than its slot and it could have.
// Whether `memlock` could be what stops pinning.
bool IsLockingLimited(const HostFacts& host);
// Bytes that the container may still take; INT64_MAX without a limit.
Bytes RoomInContainer(const HostFacts& host);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_CAUSES_H_
