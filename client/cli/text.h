// How hfctl writes values for people.
#ifndef HYPERFRAMES_CLIENT_CLI_TEXT_H_
#define HYPERFRAMES_CLIENT_CLI_TEXT_H_

#include <string>

#include "common/units.h"
#include "hyperframes/v1/checkpoint.pb.h"
#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

// "0.4s", "12s", "3m05s", "2h10m", "4d03h".
std::string AgeText(double seconds);
// "1.23ms", "450us", "2.10s".
std::string SecondsText(double seconds);
// The name of an enum's value without its prefix: "ALIVE" for NODE_STATE_ALIVE.
std::string NodeStateText(v1::NodeState state);
std::string WorkerStateText(v1::WorkerState state);
std::string LeaseStateText(v1::LeaseState state);
std::string CheckpointStateText(v1::CheckpointState state);
std::string TierText(v1::Tier tier);        // "peer".
std::string PolicyText(v1::Policy policy);  // "recompute".
// "50%"; "-" when there is no whole.
std::string ShareText(Bytes part, Bytes whole);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CLI_TEXT_H_
