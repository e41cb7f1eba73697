#include "agent/device/path_probe.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "agent/device/borrowed_memory.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace hyperframes {
namespace {

constexpr Bytes kSmallestProbe = 64 * kKiB;

}  // namespace

absl::StatusOr<LinkMeasurement> ProbePath(Device* gpu, Device* other, Direction direction,
                                          Tier tier, LinkProbeOptions options) {
  const Bytes room = std::min(gpu->free_bytes(), other->free_bytes());
  options.large_bytes = std::min(options.large_bytes, room / 4 / kSlotAlignment * kSlotAlignment);
  if (options.large_bytes < kSmallestProbe) {
    return absl::OutOfRangeError(
        absl::StrCat("only ", FormatBytes(room), " are free on ", gpu->description().uuid, " or ",
                     other->description().uuid, ": too little to measure with"));
  }
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> near,
                      BorrowMemory(gpu, gpu, options.large_bytes));
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> far,
                      BorrowMemory(gpu, other, options.large_bytes));
  HF_RETURN_IF_ERROR(far->WaitUntilUsable());
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, gpu->CreateStream(direction, tier));
  const bool out = direction == Direction::kOut;
  return ProbeLink(stream.get(), out ? *far : *near, out ? *near : *far, options);
}

}  // namespace hyperframes
