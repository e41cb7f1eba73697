#include "agent/device/device.h"

#include "common/status_macros.h"

namespace hyperframes {

absl::Status Stream::CopyAll(const std::vector<CopyPart>& parts) {
  for (const CopyPart& part : parts) HF_RETURN_IF_ERROR(Copy(part.to, part.from, part.bytes));
  return absl::OkStatus();
}

}  // namespace hyperframes
