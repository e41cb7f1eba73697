// Whether what a rank says of a checkpoint can be right. Pure functions; each refusal is
// InvalidArgument and names the field and its value.
#ifndef HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_CHECK_H_
#define HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_CHECK_H_

#include "absl/status/status.h"
#include "hyperframes/v1/checkpoint.pb.h"

namespace hyperframes {

// Absolute and normalised: no "//", "/./", "/../" and no "/" at the end, so that one directory has
// one name. At most 1024 bytes, no control characters.
absl::Status CheckCheckpointDirectory(const std::string& directory);

// Letters, digits, '-', '_' and '.', not '.' first, at most 128: one folder inside the directory.
absl::Status CheckCheckpointName(const std::string& name);

// All of a begin but its caller.
absl::Status CheckBegin(const v1::BeginCheckpointRequest& request);

// Digest of 64 lower-case hex digits, bytes >= 0, at most 4096 micro-batches, each >= 0.
absl::Status CheckShard(const v1::CheckpointShard& shard);

// Another rank's begin of the same step says the same.
absl::Status CheckSameBegin(const v1::BeginCheckpointRequest& request,
                            const v1::Checkpoint& checkpoint);

// The rank's earlier report says the same.
absl::Status CheckSameShard(const v1::CheckpointShard& shard, const v1::CheckpointShard& earlier);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_CHECK_H_
