#include "coordinator/jobs/job_state.h"

#include <cstring>

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
      return to == v1::JOB_STATE_RUNNING || to == v1::JOB_STATE_STOPPING;
    case v1::JOB_STATE_RUNNING:
      return to == v1::JOB_STATE_SUCCEEDED || to == v1::JOB_STATE_STOPPING;
    case v1::JOB_STATE_STOPPING:
      return to == v1::JOB_STATE_FAILED || to == v1::JOB_STATE_CANCELLED;
    default:
      return false;
  }
}

bool IsFinalJobState(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_SUCCEEDED:
    case v1::JOB_STATE_FAILED:
    case v1::JOB_STATE_CANCELLED:
    case v1::JOB_STATE_TIMEOUT:
    case v1::JOB_STATE_PREEMPTED:
    case v1::JOB_STATE_NO_PROGRESS:
      return true;
    default:
      return false;
  }
}

const char* JobStateName(v1::JobState state) {
  if (!v1::JobState_IsValid(state)) return "UNKNOWN";
  return v1::JobState_Name(state).c_str() + std::strlen("JOB_STATE_");
}

}  // namespace hyperframes
