#include "coordinator/jobs/job_state.h"

namespace hyperframes {

bool LegalJobMove(v1::JobState from, v1::JobState to) {
  switch (from) {
    case v1::JOB_STATE_QUEUED:
      return to == v1::JOB_STATE_ADMITTED || to == v1::JOB_STATE_CANCELLED;
    case v1::JOB_STATE_ADMITTED:
      // Back to the queue when a node is lost before anything was started on it.
      return to == v1::JOB_STATE_STARTING || to == v1::JOB_STATE_QUEUED ||
             to == v1::JOB_STATE_STOPPING;
    case v1::JOB_STATE_STARTING:
      return to == v1::JOB_STATE_RUNNING || to == v1::JOB_STATE_RESTARTING ||
             to == v1::JOB_STATE_STOPPING;
    case v1::JOB_STATE_RUNNING:
      return to == v1::JOB_STATE_CHECKPOINTING || to == v1::JOB_STATE_SUCCEEDED ||
             to == v1::JOB_STATE_RESTARTING || to == v1::JOB_STATE_STOPPING;
    case v1::JOB_STATE_CHECKPOINTING:
      // Its ranks run: whatever may happen to a running job may happen now.
      return to == v1::JOB_STATE_RUNNING || to == v1::JOB_STATE_SUCCEEDED ||
             to == v1::JOB_STATE_RESTARTING || to == v1::JOB_STATE_STOPPING;
    case v1::JOB_STATE_RESTARTING:
      return to == v1::JOB_STATE_ADMITTED || to == v1::JOB_STATE_STOPPING;
    case v1::JOB_STATE_STOPPING:
      return to == v1::JOB_STATE_FAILED || to == v1::JOB_STATE_CANCELLED ||
             to == v1::JOB_STATE_TIMEOUT || to == v1::JOB_STATE_PREEMPTED ||
             to == v1::JOB_STATE_NO_PROGRESS;
    default:
      return false;
  }
}

bool RanksRun(v1::JobState state) {
  return state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_CHECKPOINTING;
}

}  // namespace hyperframes
