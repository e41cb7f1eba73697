#include "coordinator/membership/measured_networks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace hyperframes {

absl::Status MeasuredNetworks::Check(const Measurements& measurements) {
  if (measurements.size() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("network_measured has ", measurements.size(), " nodes; at most ", kMost));
  }
  for (const v1::NetworkMeasurement& one : measurements) {
    if (one.node().empty() || one.node().size() > 63 || !(one.bytes_per_second() > 0) ||
        !std::isfinite(one.bytes_per_second()) || !(one.age_s() >= 0) ||
        !std::isfinite(one.age_s()) || one.bytes() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("network_measured of '", one.node().substr(0, 80),
                       "': wanted a name of 1 to 63 bytes, "
                       "a bandwidth above 0, and an age and bytes that are not negative"));
    }
  }
  return absl::OkStatus();
}

void MeasuredNetworks::Take(const Measurements& measurements, absl::Time now) {
  for (const v1::NetworkMeasurement& one : measurements) {
    by_node_[one.node()] = {one, now - absl::Seconds(one.age_s())};
  }
  while (by_node_.size() > kMost) {
    by_node_.erase(
        std::min_element(by_node_.begin(), by_node_.end(),
                         [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  }
}

void MeasuredNetworks::Fill(absl::Time now, Measurements* out) const {
  out->Clear();
  for (const auto& named : by_node_) {
    v1::NetworkMeasurement* const one = out->Add();
    *one = named.second.measurement;
    one->set_age_s(absl::ToDoubleSeconds(std::max(absl::ZeroDuration(), now - named.second.at)));
  }
}

}  // namespace hyperframes
