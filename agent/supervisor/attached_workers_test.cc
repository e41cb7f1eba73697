#include "agent/supervisor/attached_workers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"

namespace hyperframes {
namespace {

class AttachedWorkersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/hyperframes_attached_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    options_.directory = name + "/attached";
    options_.poll_interval = absl::Milliseconds(5);
    Create();
  }
  void TearDown() override {
    workers_.reset();
    for (const pid_t pid : children_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  void Create() {
    workers_.reset();
    workers_ = *AttachedWorkers::Create(options_, [this](const WorkerInfo& info) {
      MutexLock lock(&mutex_);
      ended_.push_back(info);
      changed_.NotifyAll();
    });
  }
  // A process of others that ends by SIGTERM or SIGKILL.
  ProcessIdentity Start() {
    const pid_t pid = fork();
    if (pid == 0) {
      while (true) pause();
    }
    children_.push_back(pid);
    return IdentifyProcess(pid);
  }
  static WorkerSpec Spec(int rank) {
    WorkerSpec spec;
    spec.worker_id = "job-1-" + std::to_string(rank);
    spec.job_id = "job";
    spec.rank = rank;
    return spec;
  }
  WorkerInfo WaitForEnd() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(changed_.WaitFor(&mutex_, absl::Seconds(20), [this]() HF_NO_THREAD_SAFETY_ANALYSIS {
      return !ended_.empty();
    }));
    const WorkerInfo info = ended_.back();
    ended_.clear();
    return info;
  }

  AttachedWorkersOptions options_;
  std::unique_ptr<AttachedWorkers> workers_;
  std::vector<pid_t> children_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<WorkerInfo> ended_ HF_GUARDED_BY(mutex_);
};

TEST_F(AttachedWorkersTest, SeesAProcessGoWithoutAWord) {
  const ProcessIdentity process = Start();
  ASSERT_TRUE(workers_->Adopt(Spec(0), process).ok());
  ASSERT_TRUE(workers_->Adopt(Spec(0), process).ok()) << "twice is once";
  ASSERT_EQ(workers_->Workers().size(), 1u);
  EXPECT_TRUE(workers_->Workers()[0].attached);
  kill(process.pid, SIGKILL);
  const WorkerInfo info = WaitForEnd();
  EXPECT_EQ(info.status.exit_code, -1);
  EXPECT_EQ(info.status.message,
            "process " + std::to_string(process.pid) + " ended without detaching");
  EXPECT_EQ(workers_->Workers().size(), 1u) << "until its end is acknowledged";
  workers_->Acknowledge({"job-1-0"});
  EXPECT_TRUE(workers_->Workers().empty());
}

TEST_F(AttachedWorkersTest, TellsAPidThatWasReusedApart) {
  ProcessIdentity process = Start();
  process.start_time += 1;
  const absl::Status refused = workers_->Adopt(Spec(0), process).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(workers_->Workers().empty());
}

TEST_F(AttachedWorkersTest, OneIdIsOneProcess) {
  ASSERT_TRUE(workers_->Adopt(Spec(0), Start()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(workers_->Adopt(Spec(0), Start()).status()));
  WorkerSpec bad = Spec(1);
  bad.worker_id = "../job";
  EXPECT_TRUE(absl::IsInvalidArgument(workers_->Adopt(bad, Start()).status()));
}

TEST_F(AttachedWorkersTest, AnEndThatWasToldIsNoDisappearance) {
  const ProcessIdentity process = Start();
  ASSERT_TRUE(workers_->Adopt(Spec(0), process).ok());
  ASSERT_TRUE(workers_->Detach("job-1-0", 0, "").ok());
  EXPECT_EQ(WaitForEnd().status.exit_code, 0);
  ASSERT_TRUE(workers_->Detach("job-1-0", 1, "").ok());
  EXPECT_EQ(workers_->Workers()[0].status.exit_code, 0) << "the first word counts";
  EXPECT_TRUE(absl::IsNotFound(workers_->Detach("job-9-0", 0, "").status()));
}

TEST_F(AttachedWorkersTest, TheNextAgentGoesOnWatching) {
  const ProcessIdentity stays = Start(), goes = Start();
  ASSERT_TRUE(workers_->Adopt(Spec(0), stays).ok());
  ASSERT_TRUE(workers_->Adopt(Spec(1), goes).ok());
  workers_.reset();
  EXPECT_TRUE(ProcessRuns(stays)) << "an agent's end disturbs nobody";
  kill(goes.pid, SIGKILL);
  waitpid(goes.pid, nullptr, 0);
  Create();
  EXPECT_EQ(WaitForEnd().spec.rank, 1);
  ASSERT_EQ(workers_->Workers().size(), 2u);
  EXPECT_TRUE(workers_->Workers()[0].status.worker == stays);
  EXPECT_TRUE(workers_->Workers()[0].adopted);
}

TEST_F(AttachedWorkersTest, TerminatesOnceAndByNoKill) {
  const ProcessIdentity process = Start();
  ASSERT_TRUE(workers_->Adopt(Spec(0), process).ok());
  ASSERT_TRUE(workers_->Terminate("job-1-0").ok());
  EXPECT_EQ(WaitForEnd().status.exit_code, -1);
  int status = 0;
  waitpid(process.pid, &status, 0);
  children_.clear();
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  EXPECT_TRUE(absl::IsNotFound(workers_->Terminate("job-9-0").status()));
}

}  // namespace
}  // namespace hyperframes
