#include "agent/device/nccl/bus_bandwidth.h"

namespace hyperframes {

double BusBytesPerSecond(Collective collective, int ranks, Bytes bytes, absl::Duration time) {
  if (time <= absl::ZeroDuration() || ranks < 1) return 0;
  const double algorithm = static_cast<double>(bytes) / absl::ToDoubleSeconds(time);
  if (collective == Collective::kSendReceive) return algorithm;
  return algorithm * 2 * (ranks - 1) / ranks;
}

}  // namespace hyperframes
