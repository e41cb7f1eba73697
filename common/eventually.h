// For tests of real processes and sockets: waiting for a condition, with a deadline.
#ifndef HYPERFRAMES_COMMON_EVENTUALLY_H_
#define HYPERFRAMES_COMMON_EVENTUALLY_H_

#include <poll.h>

#include <functional>

#include "absl/time/time.h"
#include "common/clock.h"

namespace hyperframes {

// Looks again every two milliseconds. False: `timeout` passed first.
inline bool Eventually(const std::function<bool()>& holds,
                       absl::Duration timeout = absl::Seconds(20)) {
  const absl::Time end = MonotonicClock()->Now() + timeout;
  while (!holds()) {
    if (MonotonicClock()->Now() >= end) return false;
    poll(nullptr, 0, /*timeout=*/2);
  }
  return true;
}

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_EVENTUALLY_H_
