// Sizes and durations as people write them. The one parser for flags, environment, config files, C
// and Python.
#ifndef HYPERFRAMES_COMMON_UNITS_H_
#define HYPERFRAMES_COMMON_UNITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace hyperframes {

// A count of bytes. Always non-negative in interfaces.
using Bytes = int64_t;

constexpr Bytes kKiB = Bytes{1} << 10;
constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;

// "60GiB", "512MiB", "1.5GB", "4096", "0". Units: none or B, KB/MB/GB/TB (powers of 1000),
// KiB/MiB/GiB/TiB (powers of 1024), in any case. A fraction needs a unit.
// InvalidArgument: empty, negative, unknown unit, not a number, or more than 2^62 bytes; the
// message names the value and what is accepted.
absl::StatusOr<Bytes> ParseBytes(const std::string& text);

// The shortest exact or two-digit form: "60GiB", "1.50GiB", "512B".
std::string FormatBytes(Bytes bytes);

// "5s", "250ms", "1m30s", "0". InvalidArgument: a number without a unit other than 0, negative,
// infinite or unreadable; the message names the value and what is accepted.
absl::StatusOr<absl::Duration> ParseDuration(const std::string& text);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_UNITS_H_
