#include "coordinator/wire/job_state_name.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hyperframes {

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

std::string JobStateName(v1::JobState state) {
  const std::string& name = v1::JobState_Name(state);
  const std::string prefix = "JOB_STATE_";
  if (!absl::StartsWith(name, prefix)) return absl::StrCat("UNKNOWN(", state, ")");
  return name.substr(prefix.size());
}

}  // namespace hyperframes
