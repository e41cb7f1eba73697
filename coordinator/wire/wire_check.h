// Checks of single fields, with errors that name them.
#ifndef HYPERFRAMES_COORDINATOR_WIRE_WIRE_CHECK_H_
#define HYPERFRAMES_COORDINATOR_WIRE_WIRE_CHECK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/frame.h"
#include "common/units.h"

namespace hyperframes {

// All of them: InvalidArgument "FIELD is VALUE; what would be right".

// >= 0.
absl::Status CheckWireBytes(const std::string& field, int64_t bytes);
// Finite and from 0 to a year.
absl::StatusOr<absl::Duration> WireDuration(const std::string& field, double seconds);
// Finite and >= 0.
absl::Status CheckWireNumber(const std::string& field, double number);
absl::StatusOr<Tier> WireTier(const std::string& field, int number);
absl::StatusOr<Policy> WirePolicy(const std::string& field, int number);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_WIRE_WIRE_CHECK_H_
