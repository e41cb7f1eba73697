// The time of day, for records that must keep their age across restarts. Never on the wire.
#ifndef HYPERFRAMES_COORDINATOR_SERVICE_WALL_CLOCK_H_
#define HYPERFRAMES_COORDINATOR_SERVICE_WALL_CLOCK_H_

#include "absl/time/clock.h"
#include "common/clock.h"

namespace hyperframes {

class WallClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_SERVICE_WALL_CLOCK_H_
