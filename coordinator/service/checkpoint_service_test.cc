// Checkpoints through a real server: the calls, the metrics, and what its jobs' agents report.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/eventually.h"
#include "common/protocol_version.h"
#include "coordinator/service/coordinator_server.h"
#include "coordinator/service/fake_agent_server.h"
#include "hyperframes/v1/checkpoint.grpc.pb.h"
#include "hyperframes/v1/coordinator.grpc.pb.h"
#include "hyperframes/v1/membership.grpc.pb.h"

namespace hyperframes {
namespace {

class CheckpointsOverGrpc : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/hyperframes_checkpoints_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    options_.state_directory = name;
    options_.listen_address = HostPort{"127.0.0.1", 0};
    options_.http_address = HostPort{"127.0.0.1", 0};
    options_.planner = [](const v1::PlanProblem&) { return absl::UnimplementedError("no plans"); };
    StartServer();
  }
  void StartServer() {
    server_.reset();
    auto started = CoordinatorServer::Start(options_);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = std::move(started).value();
    const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->grpc_port()),
                                             grpc::InsecureChannelCredentials());
    membership_ = v1::Membership::NewStub(channel);
    jobs_ = v1::Jobs::NewStub(channel);
    checkpoints_ = v1::Checkpoints::NewStub(channel);
    v1::RegisterResponse registered;
    ASSERT_TRUE(membership_->Register(Within().get(), agent_.Description(), &registered).ok());
  }
  static std::unique_ptr<grpc::ClientContext> Within(int seconds = 30) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    return context;
  }
  // Submits a job of two ranks and waits until it runs.
  void Run() {
    v1::SubmitJobRequest request;
    request.mutable_version()->set_major(kProtocolMajor);
    request.mutable_spec()->set_name("train");
    request.mutable_spec()->add_command("/bin/true");
    request.mutable_spec()->set_ranks(2);
    v1::SubmitJobResponse submitted;
    ASSERT_TRUE(jobs_->SubmitJob(Within().get(), request, &submitted).ok());
    job_ = submitted.job().id();
    Await(v1::JOB_STATE_RUNNING);
  }
  v1::Job Await(v1::JobState state) {
    v1::WatchJobRequest request;
    request.set_id(job_);
    v1::Job job;
    for (int i = 0; i < 20 && job.state() != state; ++i) {
      request.set_after_version(job.version());
      request.set_wait_s(5);
      EXPECT_TRUE(jobs_->WatchJob(Within().get(), request, &job).ok());
    }
    EXPECT_EQ(job.state(), state) << job.message();
    return job;
  }
  v1::CheckpointCaller Caller(int rank) {
    v1::CheckpointCaller caller;
    caller.mutable_version()->set_major(kProtocolMajor);
    caller.set_job_id(job_);
    caller.set_job_token(agent_.TokenOf(absl::StrCat(job_, "-1-", rank)));
    caller.set_rank(rank);
    return caller;
  }
  grpc::Status Begin(int rank, int64_t step, v1::Checkpoint* checkpoint) {
    v1::BeginCheckpointRequest request;
    *request.mutable_caller() = Caller(rank);
    request.set_directory("/data/run");
    request.set_name(absl::StrCat("step-", step));
    request.set_global_step(step);
    request.set_world_size(2);
    return checkpoints_->BeginCheckpoint(Within().get(), request, checkpoint);
  }
  grpc::Status Prepare(int rank, v1::Checkpoint* checkpoint) {
    v1::PrepareCheckpointRequest request;
    *request.mutable_caller() = Caller(rank);
    request.set_checkpoint_id(checkpoint->id());
    request.mutable_shard()->set_rank(rank);
    request.mutable_shard()->set_digest(std::string(64, 'a'));
    return checkpoints_->PrepareCheckpoint(Within().get(), request, checkpoint);
  }
  grpc::Status Commit(v1::Checkpoint* checkpoint) {
    v1::CommitCheckpointRequest request;
    *request.mutable_caller() = Caller(0);
    request.set_checkpoint_id(checkpoint->id());
    return checkpoints_->CommitCheckpoint(Within().get(), request, checkpoint);
  }
  grpc::Status Watch(const std::string& id, v1::CheckpointState known, double wait_s,
                     v1::Checkpoint* checkpoint) {
    v1::WatchCheckpointRequest request;
    request.set_checkpoint_id(id);
    request.set_known(known);
    request.set_wait_s(wait_s);
    return checkpoints_->WatchCheckpoint(Within(60).get(), request, checkpoint);
  }
  // Counted a moment after whoever waits for it was told.
  void ExpectMetric(const std::string& line) {
    EXPECT_TRUE(Eventually([&] { return absl::StrContains(server_->MetricsText(), line + "\n"); }))
        << line << "\n"
        << server_->MetricsText();
  }

  FakeAgents agents_;
  FakeAgentServer agent_{&agents_, "a"};
  CoordinatorOptions options_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::Membership::Stub> membership_;
  std::unique_ptr<v1::Jobs::Stub> jobs_;
  std::unique_ptr<v1::Checkpoints::Stub> checkpoints_;
  std::string job_;
};

TEST_F(CheckpointsOverGrpc, ASaveIsCommittedCountedAndListedAlsoAfterARestart) {
  Run();
  ExpectMetric("hyperframes_checkpoint_commits_total 0");
  for (const char* reason : {"rank_failed", "job_ended", "superseded", "timeout", "by_rank"}) {
    ExpectMetric(absl::StrCat("hyperframes_checkpoint_aborts_total{reason=\"", reason, "\"} 0"));
  }
  ExpectMetric("hyperframes_checkpoint_save_seconds_count 0");
  v1::Checkpoint checkpoint;
  for (int rank : {0, 1}) {
    const grpc::Status begun = Begin(rank, 50, &checkpoint);
    ASSERT_TRUE(begun.ok()) << begun.error_message();
  }
  ExpectMetric("hyperframes_checkpoints{state=\"open\"} 1");
  Await(v1::JOB_STATE_CHECKPOINTING);
  ExpectMetric("hyperframes_jobs{state=\"checkpointing\"} 1");
  for (int rank : {1, 0}) ASSERT_TRUE(Prepare(rank, &checkpoint).ok());
  EXPECT_EQ(checkpoint.state(), v1::CHECKPOINT_STATE_PREPARED);
  ExpectMetric("hyperframes_checkpoints{state=\"prepared\"} 1");
  ASSERT_TRUE(Commit(&checkpoint).ok());
  EXPECT_GT(checkpoint.save_s(), 0);
  ExpectMetric("hyperframes_checkpoints{state=\"committed\"} 1");
  ExpectMetric("hyperframes_checkpoint_commits_total 1");
  ExpectMetric("hyperframes_checkpoint_save_seconds_count 1");
  ExpectMetric("hyperframes_rpcs_total{code=\"ok\",method=\"CommitCheckpoint\"} 1");
  EXPECT_TRUE(absl::StrContains(Await(v1::JOB_STATE_RUNNING).message(), "step 50 is saved"));
  StartServer();
  v1::ListCheckpointsResponse listed;
  ASSERT_TRUE(checkpoints_->ListCheckpoints(Within().get(), {}, &listed).ok());
  ASSERT_EQ(listed.checkpoints_size(), 1);
  EXPECT_EQ(listed.checkpoints(0).id(), checkpoint.id());
  EXPECT_EQ(listed.checkpoints(0).state(), v1::CHECKPOINT_STATE_COMMITTED);
  ExpectMetric("hyperframes_checkpoint_commits_total 0");
  ExpectMetric("hyperframes_checkpoints{state=\"committed\"} 1");
}

TEST_F(CheckpointsOverGrpc, AReportOfADeadRankReachesWhoeverWatches) {
  Run();
  v1::Checkpoint checkpoint;
  for (int rank : {0, 1}) ASSERT_TRUE(Begin(rank, 50, &checkpoint).ok());
  ASSERT_TRUE(Prepare(0, &checkpoint).ok());
  v1::Checkpoint seen;
  std::thread watcher(
      [&] { EXPECT_TRUE(Watch(checkpoint.id(), v1::CHECKPOINT_STATE_OPEN, 30, &seen).ok()); });
  agents_.Exit("a", job_ + "-1-1", 0, 9);
  v1::ReportResponse reported;
  ASSERT_TRUE(membership_->Report(Within().get(), agent_.News(), &reported).ok());
  watcher.join();
  EXPECT_EQ(seen.state(), v1::CHECKPOINT_STATE_ABORTED);
  EXPECT_TRUE(absl::StrContains(seen.message(), "rank 1 on node a")) << seen.message();
  ExpectMetric("hyperframes_checkpoint_aborts_total{reason=\"rank_failed\"} 1");
}

TEST_F(CheckpointsOverGrpc, CallsWithoutAVersionAreRefused) {
  Run();
  v1::BeginCheckpointRequest request;
  *request.mutable_caller() = Caller(0);
  request.mutable_caller()->mutable_version()->set_major(9);
  v1::Checkpoint checkpoint;
  const grpc::Status status = checkpoints_->BeginCheckpoint(Within().get(), request, &checkpoint);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "9.0")) << status.error_message();
}

TEST_F(CheckpointsOverGrpc, RefusalsKeepTheirCodeAndNameTheField) {
  Run();
  v1::BeginCheckpointRequest request;
  *request.mutable_caller() = Caller(0);
  request.set_directory("data/run");
  v1::Checkpoint checkpoint;
  const grpc::Status field = checkpoints_->BeginCheckpoint(Within().get(), request, &checkpoint);
  EXPECT_EQ(field.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(field.error_message(), "directory 'data/run'"));
  v1::ListCheckpointsRequest list;
  list.set_limit(1001);
  v1::ListCheckpointsResponse listed;
  EXPECT_EQ(checkpoints_->ListCheckpoints(Within().get(), list, &listed).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  for (const double wait : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(Watch("ckpt-1", v1::CHECKPOINT_STATE_OPEN, wait, &checkpoint).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(Watch("ckpt-1", v1::CHECKPOINT_STATE_OPEN, 0, &checkpoint).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(CheckpointsOverGrpc, WatchersCountAmongTheCallsThatWaitAndEndWithTheServer) {
  options_.max_waiting_calls = 1;
  StartServer();
  Run();
  v1::Checkpoint checkpoint;
  ASSERT_TRUE(Begin(0, 50, &checkpoint).ok());
  std::thread watcher([&] {
    v1::Checkpoint seen;
    Watch(checkpoint.id(), v1::CHECKPOINT_STATE_OPEN, 30, &seen);
  });
  while (server_->waiting_calls() < 1) std::this_thread::yield();
  v1::Checkpoint seen;
  EXPECT_EQ(Watch(checkpoint.id(), v1::CHECKPOINT_STATE_OPEN, 30, &seen).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto start = std::chrono::steady_clock::now();
  server_->Shutdown();
  watcher.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(CheckpointsOverGrpc, ATimeoutOfNothingIsRefusedAtTheStart) {
  CoordinatorOptions hasty = options_;
  hasty.state_directory += "/other";
  hasty.checkpoint_timeout = absl::ZeroDuration();
  const absl::Status status = CoordinatorServer::Start(hasty).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "--checkpoint-timeout")) << status;
}

}  // namespace
}  // namespace hyperframes
