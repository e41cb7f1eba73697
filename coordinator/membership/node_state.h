// Room: coordinator/membership. Who is in the cluster, and how sure we are of it. Pure classes with
// an injected clock: they know no gRPC, no store and no jobs.
#ifndef HYPERFRAMES_COORDINATOR_MEMBERSHIP_NODE_STATE_H_
#define HYPERFRAMES_COORDINATOR_MEMBERSHIP_NODE_STATE_H_

#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

// The only moves there are. A node is born ALIVE (from UNSPECIFIED) by registering, passes
// SUSPECTED on its way to OFFLINE, and comes back from OFFLINE by registering again.
bool LegalNodeMove(v1::NodeState from, v1::NodeState to);

// "ALIVE", "SUSPECTED", "OFFLINE".
const char* NodeStateName(v1::NodeState state);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_MEMBERSHIP_NODE_STATE_H_
