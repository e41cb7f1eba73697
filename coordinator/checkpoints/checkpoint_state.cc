#include "coordinator/checkpoints/checkpoint_state.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hyperframes {

bool LegalCheckpointMove(v1::CheckpointState from, v1::CheckpointState to) {
  switch (from) {
    case v1::CHECKPOINT_STATE_OPEN:
      return to == v1::CHECKPOINT_STATE_PREPARED || to == v1::CHECKPOINT_STATE_ABORTED;
    case v1::CHECKPOINT_STATE_PREPARED:
      return to == v1::CHECKPOINT_STATE_COMMITTED || to == v1::CHECKPOINT_STATE_ABORTED;
    default:
      return false;  // COMMITTED and ABORTED are for ever.
  }
}

bool IsUnderWay(v1::CheckpointState state) {
  return state == v1::CHECKPOINT_STATE_OPEN || state == v1::CHECKPOINT_STATE_PREPARED;
}

std::string CheckpointStateName(v1::CheckpointState state) {
  const std::string& name = v1::CheckpointState_Name(state);
  const std::string prefix = "CHECKPOINT_STATE_";
  if (!absl::StartsWith(name, prefix)) return absl::StrCat("UNKNOWN(", state, ")");
  return name.substr(prefix.size());
}

}  // namespace hyperframes
