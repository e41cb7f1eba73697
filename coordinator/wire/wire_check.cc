#include "coordinator/wire/wire_check.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace hyperframes {

absl::Status CheckWireBytes(const std::string& field, int64_t bytes) {
  if (bytes >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", bytes, "; a count of bytes is never negative"));
}

absl::StatusOr<absl::Duration> WireDuration(const std::string& field, double seconds) {
  constexpr double kYear = 365.0 * 24 * 3600;
  // Written so that NaN is refused.
  if (!(seconds >= 0 && seconds <= kYear)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", seconds, "; seconds are finite, from 0 to a year"));
  }
  return absl::Seconds(seconds);
}

absl::Status CheckWireNumber(const std::string& field, double number) {
  if (std::isfinite(number) && number >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", number, "; it must be finite and not negative"));
}

absl::StatusOr<Tier> WireTier(const std::string& field, int number) {
  if (number >= 0 && number < kTierCount) return static_cast<Tier>(number);
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", number, "; tiers are TIER_KEEP (0), TIER_PEER (1), TIER_HOST (2)"));
}

absl::StatusOr<Policy> WirePolicy(const std::string& field, int number) {
  if (number >= 0 && number <= static_cast<int>(Policy::kSelective)) {
    return static_cast<Policy>(number);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", number,
                   "; policies are POLICY_SAVE (0), POLICY_RECOMPUTE (1), POLICY_SELECTIVE (2)"));
}

}  // namespace hyperframes
