// The real program, killed before and after each transaction of a checkpoint and started again.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/protocol_version.h"
#include "coordinator/coordinator_program.h"
#include "coordinator/service/fake_agent_server.h"
#include "hyperframes/v1/checkpoint.grpc.pb.h"
#include "hyperframes/v1/coordinator.grpc.pb.h"
#include "hyperframes/v1/membership.grpc.pb.h"

namespace hyperframes {
namespace {

constexpr int64_t kBaseStep = 10;
constexpr int64_t kStep = 50;

class KilledAtACheckpoint : public CoordinatorProgram {
 protected:
  // Starts it, with its agent registered.
  void Start(const std::string& failpoint = "") {
    Spawn(failpoint);
    if (HasFatalFailure()) return;
    checkpoints_ = v1::Checkpoints::NewStub(channel_);
    v1::RegisterResponse registered;
    const grpc::Status status = v1::Membership::NewStub(channel_)->Register(
        Within(10).get(), agent_.Description(), &registered);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  // A job of two ranks that runs.
  void Run() {
    const auto jobs = v1::Jobs::NewStub(channel_);
    v1::SubmitJobRequest request;
    request.mutable_version()->set_major(kProtocolMajor);
    request.mutable_spec()->set_name("train");
    request.mutable_spec()->add_command("/bin/true");
    request.mutable_spec()->set_ranks(2);
    v1::SubmitJobResponse submitted;
    ASSERT_TRUE(jobs->SubmitJob(Within(10).get(), request, &submitted).ok());
    job_ = submitted.job().id();
    v1::WatchJobRequest watch;
    watch.set_id(job_);
    watch.set_wait_s(5);
    v1::Job job;
    for (int i = 0; i < 20 && job.state() != v1::JOB_STATE_RUNNING; ++i) {
      watch.set_after_version(job.version());
      ASSERT_TRUE(jobs->WatchJob(Within(10).get(), watch, &job).ok());
    }
    ASSERT_EQ(job.state(), v1::JOB_STATE_RUNNING) << job.message();
  }
  template <typename Request>
  Request Of(int rank) {
    Request request;
    request.mutable_caller()->mutable_version()->set_major(kProtocolMajor);
    request.mutable_caller()->set_job_id(job_);
    request.mutable_caller()->set_job_token(agent_.TokenOf(absl::StrCat(job_, "-1-", rank)));
    request.mutable_caller()->set_rank(rank);
    return request;
  }
  grpc::Status Begin(int rank, int64_t step) {
    auto request = Of<v1::BeginCheckpointRequest>(rank);
    request.set_directory(run_);
    request.set_name(absl::StrCat("step-", step));
    request.set_global_step(step);
    request.set_world_size(2);
    v1::Checkpoint answer;
    const grpc::Status status = checkpoints_->BeginCheckpoint(Within(10).get(), request, &answer);
    if (status.ok()) id_ = answer.id();
    return status;
  }
  grpc::Status Prepare(int rank) {
    auto request = Of<v1::PrepareCheckpointRequest>(rank);
    request.set_checkpoint_id(id_);
    request.mutable_shard()->set_rank(rank);
    request.mutable_shard()->set_digest(std::string(64, 'a'));
    v1::Checkpoint answer;
    return checkpoints_->PrepareCheckpoint(Within(10).get(), request, &answer);
  }
  grpc::Status Commit() {
    auto request = Of<v1::CommitCheckpointRequest>(0);
    request.set_checkpoint_id(id_);
    v1::Checkpoint answer;
    return checkpoints_->CommitCheckpoint(Within(10).get(), request, &answer);
  }
  grpc::Status Abort() {
    auto request = Of<v1::AbortCheckpointRequest>(1);
    request.set_checkpoint_id(id_);
    request.set_reason("disk full");
    v1::Checkpoint answer;
    return checkpoints_->AbortCheckpoint(Within(10).get(), request, &answer);
  }
  grpc::Status Retire(const std::string& id) {
    auto request = Of<v1::RetireCheckpointRequest>(0);
    request.set_checkpoint_id(id);
    v1::Checkpoint answer;
    return checkpoints_->RetireCheckpoint(Within(10).get(), request, &answer);
  }
  std::vector<std::function<grpc::Status()>> Save(int64_t step) {
    return {[=] { return Begin(0, step); }, [=] { return Begin(1, step); },
            [=] { return Prepare(1); }, [=] { return Prepare(0); }, [=] { return Commit(); }};
  }
  std::set<int64_t> Committed() {
    v1::ListCheckpointsRequest request;
    request.set_directory(run_);
    request.set_committed_only(true);
    v1::ListCheckpointsResponse response;
    const grpc::Status status = checkpoints_->ListCheckpoints(Within(10).get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::set<int64_t> steps;
    for (const auto& checkpoint : response.checkpoints()) steps.insert(checkpoint.global_step());
    return steps;
  }
  v1::Checkpoint See(const std::string& id) {
    v1::WatchCheckpointRequest request;
    request.set_checkpoint_id(id);
    v1::Checkpoint checkpoint;
    checkpoints_->WatchCheckpoint(Within(10).get(), request, &checkpoint).ok();
    return checkpoint;
  }
  // Makes the calls in order on a coordinator that dies at `failpoint`. The call that it dies in is
  // made again on the next one, after `look`; its status there.
  grpc::Status DieIn(const std::string& failpoint,
                     const std::vector<std::function<grpc::Status()>>& calls,
                     const std::function<void()>& look) {
    End(SIGKILL);
    Start(failpoint);
    int deaths = 0;
    grpc::Status repeated;
    for (const auto& call : calls) {
      grpc::Status status = call();
      if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
        ++deaths;
        const int ended = End(0);
        EXPECT_TRUE(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL) << ended;
        Start();
        look();
        status = repeated = call();
        if (deaths == 1 && status.error_code() == grpc::StatusCode::NOT_FOUND) continue;
      }
      EXPECT_TRUE(status.ok()) << failpoint << ": " << status.error_message();
    }
    EXPECT_EQ(deaths, 1) << failpoint;
    return repeated;
  }

  FakeAgents agents_;
  FakeAgentServer agent_{&agents_, "a"};
  std::unique_ptr<v1::Checkpoints::Stub> checkpoints_;
  std::string job_;
  std::string run_ = "/data/run";
  std::string id_;  // Of the checkpoint that was begun last.
};

TEST_F(KilledAtACheckpoint, NothingCommittedIsLostAndNothingElseIsShownAsCommitted) {
  Start();
  if (!HasFatalFailure()) Run();
  if (HasFatalFailure()) return;
  for (const std::string point :
       {"checkpoint_before_begin", "checkpoint_after_begin", "checkpoint_before_prepare",
        "checkpoint_after_prepare", "checkpoint_before_prepare:2", "checkpoint_after_prepare:2",
        "checkpoint_before_commit", "checkpoint_after_commit"}) {
    SCOPED_TRACE(point);
    run_ = "/data/" + absl::StrReplaceAll(point, {{":", "-"}});
    for (const auto& call : Save(kBaseStep)) {
      const grpc::Status status = call();
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
    const bool decided = point == "checkpoint_after_commit";
    DieIn(point, Save(kStep), [&] {
      EXPECT_EQ(Committed(),
                decided ? std::set<int64_t>({kBaseStep, kStep}) : std::set<int64_t>({kBaseStep}));
      if (absl::StrContains(point, "begin")) return;
      const v1::Checkpoint seen = See(id_);
      // What was acknowledged is there: one part before the second report, both before the commit.
      const bool commit = absl::StrContains(point, "commit");
      const int acknowledged = commit ? 2 : absl::StrContains(point, ":2") ? 1 : 0;
      EXPECT_EQ(seen.shards_size(),
                acknowledged + (absl::StrContains(point, "after_prepare") ? 1 : 0));
      EXPECT_EQ(seen.state(), decided                   ? v1::CHECKPOINT_STATE_COMMITTED
                              : seen.shards_size() == 2 ? v1::CHECKPOINT_STATE_PREPARED
                                                        : v1::CHECKPOINT_STATE_OPEN);
    });
    if (HasFatalFailure()) return;
    EXPECT_EQ(Committed(), std::set<int64_t>({kBaseStep, kStep}));
  }
}

TEST_F(KilledAtACheckpoint, AnAbortOrARetirementHoldsOrCanBeRepeated) {
  Start();
  if (!HasFatalFailure()) Run();
  if (HasFatalFailure()) return;
  for (const std::string point : {"checkpoint_before_abort", "checkpoint_after_abort"}) {
    SCOPED_TRACE(point);
    run_ = "/data/" + point;
    DieIn(point, {[&] { return Begin(0, kStep); }, [&] { return Abort(); }}, [&] {
      EXPECT_EQ(See(id_).state(), absl::StrContains(point, "after") ? v1::CHECKPOINT_STATE_ABORTED
                                                                    : v1::CHECKPOINT_STATE_OPEN);
    });
    if (HasFatalFailure()) return;
    EXPECT_EQ(See(id_).message(), "rank 1 gave up: disk full");
  }
  for (const std::string point : {"checkpoint_before_retire", "checkpoint_after_retire"}) {
    SCOPED_TRACE(point);
    run_ = "/data/" + point;
    for (const auto& call : Save(kBaseStep)) ASSERT_TRUE(call().ok());
    const std::string old = id_;
    for (const auto& call : Save(kStep)) ASSERT_TRUE(call().ok());
    const bool gone = absl::StrContains(point, "after");
    const grpc::Status repeated = DieIn(point, {[&] { return Retire(old); }}, [&] {
      EXPECT_EQ(Committed(),
                gone ? std::set<int64_t>({kStep}) : std::set<int64_t>({kBaseStep, kStep}));
    });
    if (HasFatalFailure()) return;
    EXPECT_EQ(repeated.error_code(), gone ? grpc::StatusCode::NOT_FOUND : grpc::StatusCode::OK);
    EXPECT_EQ(Committed(), std::set<int64_t>({kStep}));
  }
}

}  // namespace
}  // namespace hyperframes
