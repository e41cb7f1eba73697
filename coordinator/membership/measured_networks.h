// What one node has measured of its ways to others. Not thread-safe; the registry guards it.
#ifndef HYPERFRAMES_COORDINATOR_MEMBERSHIP_MEASURED_NETWORKS_H_
#define HYPERFRAMES_COORDINATOR_MEMBERSHIP_MEASURED_NETWORKS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "hyperframes/v1/membership.pb.h"

namespace hyperframes {

class MeasuredNetworks {
 public:
  using Measurements = google::protobuf::RepeatedPtrField<v1::NetworkMeasurement>;
  static constexpr int kMost = 64;

  // InvalidArgument names the measurement that cannot be: of more than kMost, without a node's
  // name, or with a number that is none.
  static absl::Status Check(const Measurements& measurements);

  // Keeps each, at most kMost: the oldest go. A node that is not named keeps its figure, so that an
  // agent which has restarted and measured nothing yet does not make others forget.
  void Take(const Measurements& measurements, absl::Time now);

  // By node, with their ages now.
  void Fill(absl::Time now, Measurements* out) const;

 private:
  struct Kept {
    v1::NetworkMeasurement measurement;
    absl::Time at;
  };
  std::map<std::string, Kept> by_node_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_MEMBERSHIP_MEASURED_NETWORKS_H_
