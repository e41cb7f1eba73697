// What GPUs of other nodes are offered to a plan, and over which links. Pure.
#ifndef HYPERFRAMES_COORDINATOR_PLANS_NETWORK_LINKS_H_
#define HYPERFRAMES_COORDINATOR_PLANS_NETWORK_LINKS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/membership/node_registry.h"
#include "hyperframes/v1/plan.pb.h"

namespace hyperframes {

// More lenders on other nodes than this make no plan better: a rank uses a few.
constexpr size_t kMostDistantLenders = 16;

// True where frames can go from one node to the other: both are ALIVE and describe a network, and
// they are two.
bool AreConnected(const Node& a, const Node& b);

// How long a plan goes by a measurement. Past it the promise counts again: a way that was measured
// as slow carries nothing any more, and only frames can show that it has become faster.
constexpr absl::Duration kMeasurementIsFresh = absl::Minutes(30);

// What frames between the two nodes really got, in bytes per second: as `node` measured it, or
// where that one has no fresh figure, as `other` did. 0: nothing is fresh.
double MeasuredBetween(const Node& node, const Node& other);

// From a GPU of `node` to one of `other`, which are connected. As fast as the slower of the two
// networks promises and no faster than measured, as late as the later of them; all links of `node`
// to other nodes share its way out.
v1::LinkProfile NetworkLink(const Node& node, const std::string& gpu, const Node& other,
                            const std::string& lender);

// Adds to `problem`, which has the devices and links of the ranks' own nodes, the links of each
// rank's GPU to the kMostDistantLenders GPUs of connected nodes that lend most, and those devices
// where it lacks them. `offers` are the devices of all of `nodes`.
void AddNetworkLinks(const std::vector<Node>& nodes, const std::vector<v1::DeviceProfile>& offers,
                     v1::PlanProblem* problem);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANS_NETWORK_LINKS_H_
