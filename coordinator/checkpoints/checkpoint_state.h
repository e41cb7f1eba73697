// Room: coordinator/checkpoints. Which ranks have written what of a checkpoint, and the one
// decision that completes it. The tensors are files of the job, which nobody here opens. It knows
// jobs by their records, and no gRPC. This file: the states and their legal moves.
#ifndef HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_STATE_H_
#define HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_STATE_H_

#include <string>

#include "hyperframes/v1/checkpoint.pb.h"

namespace hyperframes {

// The only moves there are; everything else is refused.
bool LegalCheckpointMove(v1::CheckpointState from, v1::CheckpointState to);

// OPEN or PREPARED: its ranks, or rank 0, have still something to do.
bool IsUnderWay(v1::CheckpointState state);

// "OPEN" for CHECKPOINT_STATE_OPEN; "UNKNOWN(99)" for a state of a newer release.
std::string CheckpointStateName(v1::CheckpointState state);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_STATE_H_
