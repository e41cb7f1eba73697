// What every side of the wire says about the state of a job, in the same words.
#ifndef HYPERFRAMES_COORDINATOR_WIRE_JOB_STATE_NAME_H_
#define HYPERFRAMES_COORDINATOR_WIRE_JOB_STATE_NAME_H_

#include <string>

#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

// True for states that a job never leaves: SUCCEEDED, FAILED, CANCELLED, TIMEOUT, PREEMPTED and
// NO_PROGRESS.
bool IsFinalJobState(v1::JobState state);

// "RUNNING" for JOB_STATE_RUNNING; "UNKNOWN(99)" for a state of a newer peer.
std::string JobStateName(v1::JobState state);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_WIRE_JOB_STATE_NAME_H_
