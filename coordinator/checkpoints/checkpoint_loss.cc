#include "coordinator/checkpoints/checkpoint_loss.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/failures.h"
#include "coordinator/jobs/job_state.h"

namespace hyperframes {
namespace {

bool HasReported(const v1::Checkpoint& checkpoint, int rank) {
  return std::any_of(checkpoint.shards().begin(), checkpoint.shards().end(),
                     [rank](const v1::CheckpointShard& shard) { return shard.rank() == rank; });
}

}  // namespace

bool SavesIn(v1::JobState state) {
  return state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_STOPPING || RanksRun(state);
}

absl::optional<CheckpointLoss> FindLoss(const v1::JobRecord* job,
                                        const v1::Checkpoint& checkpoint) {
  if (job == nullptr) {
    return CheckpointLoss{"job_ended",
                          absl::StrCat("job ", checkpoint.job_id(), " has ended long ago")};
  }
  // restarts() is what the workers were given as TORCHELASTIC_RESTART_COUNT.
  if (job->restarts() > checkpoint.attempt()) {
    return CheckpointLoss{
        "superseded", absl::StrCat("job ", job->id(), " was restarted: attempt ", job->restarts(),
                                   " follows attempt ", checkpoint.attempt())};
  }
  if (!SavesIn(job->state())) {
    const v1::JobWorkerRecord* failed = FirstFailed(*job);
    if (failed != nullptr) return CheckpointLoss{"rank_failed", FailureText(*job, *failed)};
    return CheckpointLoss{"job_ended",
                          absl::StrCat("job ", job->id(), " is ", JobStateName(job->state()))};
  }
  for (const v1::JobWorkerRecord& worker : job->workers()) {
    if (worker.report().state() != v1::WORKER_STATE_EXITED) continue;
    // A rank whose part is written may go; rank 0 has the commit to make.
    const bool reported = HasReported(checkpoint, worker.rank());
    if (reported && worker.rank() != 0) continue;
    return CheckpointLoss{"rank_failed", absl::StrCat(FailureText(*job, worker),
                                                      reported ? " before it had committed"
                                                               : " before its part was written")};
  }
  return absl::nullopt;
}

}  // namespace hyperframes
