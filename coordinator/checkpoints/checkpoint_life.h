// A coordinator's checkpoints over real jobs with scripted agents, and a clock that tests advance:
// two nodes, two GPUs each.
#ifndef HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_LIFE_H_
#define HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_LIFE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/checkpoints/checkpoint_desk.h"
#include "coordinator/jobs/job_life.h"

namespace hyperframes {

class CheckpointLife : public JobLife {
 protected:
  void SetUp() override {
    JobLife::SetUp();
    Open();
  }
  // The coordinator is killed and started again: all memory is gone.
  void RestartCoordinator() {
    desk_.reset();
    Restart();
    Register("a", 1);
    Register("b", 1);
    Open();
  }
  void Open() {
    auto loaded = CheckpointBook::Load(CheckpointBook::Options(), &store_, &clock_);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    checkpoint_book_ = std::move(loaded).value();
    CheckpointDesk::Options options;
    options.on_commit = [this](absl::Duration save) { saves_.push_back(save); };
    options.on_abort = [this](const std::string& reason) { ++aborts_[reason]; };
    desk_ = std::make_unique<CheckpointDesk>(options, checkpoint_book_.get(), book_.get(), &clock_);
    reconciler_->set_also([this] { desk_->Sweep(); });
  }
  // A job of two ranks on two nodes that runs.
  std::string Run(int max_restarts = 0) {
    const std::string id = SubmitRestartable(2, max_restarts);
    Pass();
    EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << Job(id)->message();
    return id;
  }
  v1::CheckpointCaller Caller(const std::string& job, int rank, int attempt = 0) {
    v1::CheckpointCaller caller;
    caller.set_job_id(job);
    caller.set_job_token(Job(job)->token());
    caller.set_rank(rank);
    caller.set_attempt(attempt);
    return caller;
  }
  v1::BeginCheckpointRequest BeginOf(const v1::CheckpointCaller& caller, int64_t step,
                                     const std::string& directory = "/data/run") {
    v1::BeginCheckpointRequest request;
    *request.mutable_caller() = caller;
    request.set_directory(directory);
    request.set_name(absl::StrCat("step-", step));
    request.set_global_step(step);
    request.set_superframe_id(step / 2);
    request.set_world_size(2);
    request.set_topology_hash("abc123");
    return request;
  }
  v1::PrepareCheckpointRequest PartOf(const v1::CheckpointCaller& caller, const std::string& id) {
    v1::PrepareCheckpointRequest request;
    *request.mutable_caller() = caller;
    request.set_checkpoint_id(id);
    request.mutable_shard()->set_rank(caller.rank());
    request.mutable_shard()->set_bytes(1000 + caller.rank());
    request.mutable_shard()->set_digest(std::string(63, 'a') + std::to_string(caller.rank()));
    for (int64_t batch : {3, 1, 2}) request.mutable_shard()->add_micro_batches(batch);
    return request;
  }
  absl::StatusOr<v1::Checkpoint> Begin(const std::string& job, int rank, int64_t step,
                                       int attempt = 0,
                                       const std::string& directory = "/data/run") {
    return desk_->Begin(BeginOf(Caller(job, rank, attempt), step, directory));
  }
  absl::StatusOr<v1::Checkpoint> Prepare(const std::string& job, int rank, const std::string& id,
                                         int attempt = 0) {
    return desk_->Prepare(PartOf(Caller(job, rank, attempt), id));
  }
  absl::StatusOr<v1::Checkpoint> Commit(const std::string& job, const std::string& id, int rank = 0,
                                        int attempt = 0) {
    v1::CommitCheckpointRequest request;
    *request.mutable_caller() = Caller(job, rank, attempt);
    request.set_checkpoint_id(id);
    return desk_->Commit(request);
  }
  absl::StatusOr<v1::Checkpoint> Abort(const std::string& job, int rank, const std::string& id,
                                       const std::string& reason, int attempt = 0) {
    v1::AbortCheckpointRequest request;
    *request.mutable_caller() = Caller(job, rank, attempt);
    request.set_checkpoint_id(id);
    request.set_reason(reason);
    return desk_->Abort(request);
  }
  absl::StatusOr<v1::Checkpoint> Retire(const std::string& job, const std::string& id,
                                        int attempt = 0) {
    v1::RetireCheckpointRequest request;
    *request.mutable_caller() = Caller(job, 0, attempt);
    request.set_checkpoint_id(id);
    return desk_->Retire(request);
  }
  // Both ranks begin and prepare; its id.
  std::string MakePrepared(const std::string& job, int64_t step, int attempt = 0,
                           const std::string& directory = "/data/run") {
    std::string id;
    for (int rank : {0, 1}) {
      const auto begun = Begin(job, rank, step, attempt, directory);
      EXPECT_TRUE(begun.ok()) << begun.status();
      if (begun.ok()) id = begun->id();
    }
    for (int rank : {0, 1}) EXPECT_TRUE(Prepare(job, rank, id, attempt).ok());
    return id;
  }
  std::string MakeCommitted(const std::string& job, int64_t step, int attempt = 0,
                            const std::string& directory = "/data/run") {
    const std::string id = MakePrepared(job, step, attempt, directory);
    EXPECT_TRUE(Commit(job, id, 0, attempt).ok());
    return id;
  }
  v1::Checkpoint See(const std::string& id) {
    const auto seen = desk_->Watch(id, v1::CHECKPOINT_STATE_UNSPECIFIED, absl::ZeroDuration());
    EXPECT_TRUE(seen.ok()) << seen.status();
    return seen.ok() ? *seen : v1::Checkpoint();
  }
  v1::CheckpointState State(const std::string& id) { return See(id).state(); }
  static bool Says(const absl::Status& status, const std::string& words) {
    return absl::StrContains(status.message(), words);
  }

  std::vector<absl::Duration> saves_;
  std::map<std::string, int> aborts_;
  std::unique_ptr<CheckpointBook> checkpoint_book_;
  std::unique_ptr<CheckpointDesk> desk_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_LIFE_H_
