// Whether a checkpoint that is under way can still be completed, by what is known of its job.
#ifndef HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_LOSS_H_
#define HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_LOSS_H_

#include <string>

#include "absl/types/optional.h"
#include "hyperframes/v1/checkpoint.pb.h"
#include "hyperframes/v1/records.pb.h"

namespace hyperframes {

// Why a checkpoint was aborted, in one of a few words for the metric and in a sentence for people.
struct CheckpointLoss {
  std::string reason;   // One of kAbortReasons.
  std::string message;  // Names the rank where there is one.
};

constexpr const char* kAbortReasons[] = {
    "rank_failed",  // A rank has ended that had still something to do.
    "job_ended",    // The job has left the states in which it saves.
    "superseded",   // A newer attempt of the job runs.
    "timeout",      // Nobody has said anything new for too long.
    "by_rank",      // A rank has given up and said so.
};

// Workers of a job in this state may be saving: STARTING (some run already), RUNNING,
// CHECKPOINTING, and STOPPING, whose grace is there for that.
bool SavesIn(v1::JobState state);

// Nothing while `checkpoint`, which is under way, can still be completed. `job` is null when it is
// forgotten.
absl::optional<CheckpointLoss> FindLoss(const v1::JobRecord* job, const v1::Checkpoint& checkpoint);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_LOSS_H_
