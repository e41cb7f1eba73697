#include "coordinator/membership/node_state.h"

namespace hyperframes {

bool LegalNodeMove(v1::NodeState from, v1::NodeState to) {
  switch (from) {
    case v1::NODE_STATE_UNSPECIFIED:
      return to == v1::NODE_STATE_ALIVE;
    case v1::NODE_STATE_ALIVE:
      return to == v1::NODE_STATE_SUSPECTED;
    case v1::NODE_STATE_SUSPECTED:
      return to == v1::NODE_STATE_ALIVE || to == v1::NODE_STATE_OFFLINE;
    case v1::NODE_STATE_OFFLINE:
      return to == v1::NODE_STATE_ALIVE;
    default:
      return false;
  }
}

const char* NodeStateName(v1::NodeState state) {
  switch (state) {
    case v1::NODE_STATE_ALIVE:
      return "ALIVE";
    case v1::NODE_STATE_SUSPECTED:
      return "SUSPECTED";
    case v1::NODE_STATE_OFFLINE:
      return "OFFLINE";
    default:
      return "UNSPECIFIED";
  }
}

}  // namespace hyperframes
