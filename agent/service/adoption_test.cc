// A process that others started is watched as a worker.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "agent/service/agent_fixture.h"

namespace hyperframes {
namespace {

class AdoptionTest : public AgentTest {
 protected:
  void SetUp() override {
    child_ = fork();
    if (child_ == 0) {
      while (true) pause();
    }
    const ProcessIdentity process = IdentifyProcess(child_);
    request_.set_epoch(5);
    request_.set_worker_id("job-1-0");
    request_.set_job_id("job");
    request_.set_job_token("secret");
    request_.set_gpu("SIM-a-1");
    request_.mutable_process()->set_pid(process.pid);
    request_.mutable_process()->set_start_time(process.start_time);
    request_.mutable_process()->set_boot_id(process.boot_id);
  }
  void TearDown() override { End(); }
  void End() {
    if (child_ == 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  grpc::Status Adopt() { return service_->AdoptWorker(nullptr, &request_, &response_); }
  WorkerState State() { return node_->Workers()[0].status.state; }

  pid_t child_ = 0;
  v1::AdoptWorkerRequest request_;
  v1::AdoptWorkerResponse response_;
};

TEST_F(AdoptionTest, GivesItWhatAWorkerFindsInItsEnvironmentAndNothingOfTorchruns) {
  ASSERT_TRUE(Adopt().ok());
  EXPECT_TRUE(response_.worker().attached());
  EXPECT_EQ(response_.worker().gpu(), "SIM-a-1");
  const auto& environment = response_.environment();
  EXPECT_EQ(environment.at("HYPERFRAMES_JOB_ID"), "job");
  EXPECT_EQ(environment.at("HYPERFRAMES_JOB_TOKEN"), "secret");
  EXPECT_EQ(environment.at("HYPERFRAMES_GPU"), "SIM-a-1");
  EXPECT_EQ(environment.at("HYPERFRAMES_WORKER_SOCKET"), node_->worker_socket());
  EXPECT_NE(environment.at("HYPERFRAMES_HOST_DEVICES").find("SIM-a-1"), std::string::npos);
  for (const char* name :
       {"RANK", "WORLD_SIZE", "MASTER_PORT", "HYPERFRAMES_COORDINATOR", "PATH"}) {
    EXPECT_EQ(environment.count(name), 0u) << name;
  }
}

TEST_F(AdoptionTest, ItsLeasesAreBackWhenTheProcessIsGone) {
  ASSERT_TRUE(Adopt().ok());
  Lend("lease", kMiB);
  EXPECT_EQ(Lent(), kMiB);
  End();
  ASSERT_TRUE(Eventually([&] { return State() == WorkerState::kExited; }));
  EXPECT_TRUE(Eventually([&] { return Lent() == 0; }));
  EXPECT_EQ(node_->leases()->released_by_reason()["worker_died"], 1);
}

TEST_F(AdoptionTest, ADetachGivesItsLeasesBackAsAJobsEnd) {
  ASSERT_TRUE(Adopt().ok());
  Lend("lease", kMiB);
  v1::DetachWorkerRequest detach;
  detach.set_epoch(5);
  detach.set_worker_id("job-1-0");
  v1::DetachWorkerResponse answer;
  ASSERT_TRUE(service_->DetachWorker(nullptr, &detach, &answer).ok());
  EXPECT_EQ(answer.worker().state(), v1::WORKER_STATE_EXITED);
  EXPECT_EQ(Lent(), 0);
  EXPECT_EQ(node_->leases()->released_by_reason()["job_end"], 1);
  detach.set_worker_id("job-9-0");
  EXPECT_EQ(service_->DetachWorker(nullptr, &detach, &answer).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdoptionTest, AnotherProcessOnTheSocketIsNotTheWorker) {
  ASSERT_TRUE(Adopt().ok());
  const UniqueFd page(memfd_create("counters", 0));
  auto client = Borrower("job-1-0", page.get());  // This process says that it is the child.
  EXPECT_EQ(node_->counters().Of("job-1-0").steps, 0);
  EXPECT_EQ(node_->counters().ByGpu().count("SIM-a-1"), 0u);
}

TEST_F(AdoptionTest, RefusesAnOldEpochAnotherNodesGpuAndAProcessThatIsNotHere) {
  request_.set_gpu("SIM-b-0");
  EXPECT_EQ(Adopt().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request_.set_gpu("SIM-a-1");
  request_.mutable_process()->set_boot_id("another machine's");
  EXPECT_EQ(Adopt().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  request_.set_epoch(4);
  EXPECT_EQ(Adopt().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(AdoptionTest, IsStoppedByOneSigterm) {
  ASSERT_TRUE(Adopt().ok());
  v1::StopWorkerRequest stop;
  stop.set_epoch(5);
  stop.set_worker_id("job-1-0");
  v1::StopWorkerResponse stopped;
  ASSERT_TRUE(service_->StopWorker(nullptr, &stop, &stopped).ok());
  int status = 0;
  ASSERT_EQ(waitpid(child_, &status, 0), child_);
  child_ = 0;
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  EXPECT_TRUE(Eventually([&] { return State() == WorkerState::kExited; }));
}

}  // namespace
}  // namespace hyperframes
