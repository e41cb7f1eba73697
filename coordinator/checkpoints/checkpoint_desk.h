// Where the ranks of a job agree on checkpoints: the rules of every call of checkpoint.proto.
#ifndef HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_DESK_H_
#define HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_DESK_H_

#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/checkpoints/checkpoint_book.h"
#include "coordinator/checkpoints/checkpoint_loss.h"
#include "coordinator/jobs/job_book.h"
#include "hyperframes/v1/checkpoint.pb.h"

namespace hyperframes {

class CheckpointDesk {
 public:
  struct Options {
    absl::Duration timeout = absl::Minutes(10);  // Of one under way, without anything new.
    int max_under_way_per_job = 16;              // Each in a directory of its own.
    std::function<void(absl::Duration save)> on_commit;
    std::function<void(const std::string& reason)> on_abort;  // One of kAbortReasons.
  };

  // Everything must outlive the desk.
  CheckpointDesk(Options options, CheckpointBook* book, JobBook* jobs, const Clock* clock);

  // The calls of checkpoint.proto, whose comments are their contracts; idempotent. Common codes:
  // NotFound (no such job or checkpoint), PermissionDenied (not this job's token, or another job's
  // checkpoint), InvalidArgument (names the field and its value), Aborted (a newer attempt has
  // called, or the checkpoint was aborted: why), else the store's. Thread-safe, like all here.

  // FailedPrecondition: the job's state is none to save in, or the directory is taken by another
  // step or job. ResourceExhausted: too many of this job, or of all, are under way. Moves a RUNNING
  // job to CHECKPOINTING.
  absl::StatusOr<v1::Checkpoint> Begin(const v1::BeginCheckpointRequest& request);
  absl::StatusOr<v1::Checkpoint> Prepare(const v1::PrepareCheckpointRequest& request);
  // FailedPrecondition names the ranks that are missing. Moves the job back to RUNNING.
  absl::StatusOr<v1::Checkpoint> Commit(const v1::CommitCheckpointRequest& request);
  absl::StatusOr<v1::Checkpoint> Abort(const v1::AbortCheckpointRequest& request);
  // Another job's may be retired once that job has ended: a training goes on under a new job.
  absl::StatusOr<v1::Checkpoint> Retire(const v1::RetireCheckpointRequest& request);

  // Blocks at most `wait`. Unlike the calls of ranks, an aborted checkpoint is an answer here.
  absl::StatusOr<v1::Checkpoint> Watch(const std::string& id, v1::CheckpointState known,
                                       absl::Duration wait) const;
  // Newest first; fewer than the limit where more would be over 16 MiB.
  absl::StatusOr<v1::ListCheckpointsResponse> List(const v1::ListCheckpointsRequest& request) const;

  // Aborts what cannot be completed any more, or has timed out, and moves jobs between RUNNING and
  // CHECKPOINTING where that was missed. Level-triggered: call it whenever jobs have changed, and
  // from time to time.
  void Sweep();

  // Ends all waits, now and later.
  void Stop() { book_->Stop(); }

 private:
  absl::StatusOr<JobBook::Record> Admit(const v1::CheckpointCaller& caller) const;
  // The caller's own checkpoint, aborted before if it is lost.
  absl::StatusOr<CheckpointBook::Record> Own(const v1::CheckpointCaller& caller,
                                             const std::string& id) HF_REQUIRES(deciding_);
  // What a begin gets that opens nothing: an earlier answer, or why not. Null: it may open one.
  absl::StatusOr<CheckpointBook::Record> Earlier(const v1::BeginCheckpointRequest& request)
      HF_REQUIRES(deciding_);
  absl::StatusOr<CheckpointBook::Record> Join(const v1::BeginCheckpointRequest& request,
                                              const CheckpointBook::Record& current)
      HF_REQUIRES(deciding_);
  absl::StatusOr<CheckpointBook::Record> AbortIfLost(const CheckpointBook::Record& record)
      HF_REQUIRES(deciding_);
  absl::StatusOr<CheckpointBook::Record> AbortFor(const CheckpointBook::Record& record,
                                                  const CheckpointLoss& loss)
      HF_REQUIRES(deciding_);
  void AbortTimedOut(const CheckpointBook::Record& record) HF_REQUIRES(deciding_);
  // Moves the job to where its checkpoints have it.
  void SyncJob(const std::string& job_id) HF_REQUIRES(deciding_);
  void Progress(const std::string& id, int rank) HF_REQUIRES(deciding_);
  v1::Checkpoint Show(const CheckpointBook::Record& record) const;

  // Of one checkpoint, in memory: a restart of the coordinator starts its time anew.
  struct Life {
    absl::Time progress;
    std::set<int> begun;  // Ranks; empty after a restart.
  };

  const Options options_;
  CheckpointBook* const book_;
  JobBook* const jobs_;
  const Clock* const clock_;
  // Held while the store is written: what was looked at is still so when it is decided upon.
  // Watchers and lists do not take it.
  Mutex deciding_;
  std::map<std::string, Life> lives_ HF_GUARDED_BY(deciding_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_DESK_H_
