// Programs that torchrun or a shell has started, as jobs.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "coordinator/jobs/attach_desk.h"
#include "coordinator/jobs/job_life.h"

namespace hyperframes {
namespace {

class Attach : public JobLife {
 protected:
  void SetUp() override {
    JobLife::SetUp();
    desk_ = std::make_unique<AttachDesk>(epoch_, book_.get(), registry_.get(), &agents_);
  }
  v1::AttachJobRequest Rank(int rank, int world_size, int pid, const std::string& node = "a") {
    v1::AttachJobRequest request;
    request.set_group_key("torchrun/127.0.0.1:29500/0");
    request.set_name("train");
    request.add_command("train.py");
    request.set_rank(rank);
    request.set_world_size(world_size);
    request.set_node(node);
    request.mutable_process()->set_pid(pid);
    request.mutable_process()->set_start_time(7);
    request.mutable_process()->set_boot_id("boot");
    return request;
  }
  absl::StatusOr<JobBook::Record> Detach(const v1::AttachJobResponse& rank, int exit_code) {
    v1::DetachJobRequest request;
    request.set_job_id(rank.job_id());
    request.set_job_token(rank.job_token());
    request.set_worker_id(rank.worker_id());
    request.set_exit_code(exit_code);
    return desk_->Detach(request);
  }
  // Both ranks of one program, running.
  std::string RunTwo() {
    first_ = *desk_->Attach(Rank(0, 2, 100));
    second_ = *desk_->Attach(Rank(1, 2, 101));
    Pass();
    EXPECT_EQ(Job(first_.job_id())->state(), v1::JOB_STATE_RUNNING);
    return first_.job_id();
  }
  // As the agent tells it when a process is gone without a word.
  void Disappear(const std::string& worker) {
    std::vector<v1::WorkerReport> workers = agents_.Workers("a");
    for (v1::WorkerReport& report : workers) {
      if (report.worker_id() != worker) continue;
      report.set_state(v1::WORKER_STATE_EXITED);
      report.set_exit_code(-1);
      report.set_message("process 101 ended without detaching");
    }
    ASSERT_TRUE(reports_->Apply("a", workers).ok());
    agents_.Exit("a", worker, -1);
  }

  std::unique_ptr<AttachDesk> desk_;
  v1::AttachJobResponse first_, second_;
};

TEST_F(Attach, RanksOfOneProgramAreOneJobThatRunsOnceAllAreThere) {
  const auto first = desk_->Attach(Rank(0, 2, 100));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->environment().at("HYPERFRAMES_JOB_TOKEN"), first->job_token());
  Pass();
  EXPECT_EQ(Job(first->job_id())->state(), v1::JOB_STATE_STARTING);
  EXPECT_TRUE(absl::StrContains(Job(first->job_id())->message(), "1 of 2 ranks have attached"));
  const auto second = desk_->Attach(Rank(1, 2, 101));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->job_id(), first->job_id());
  EXPECT_NE(second->gpu(), first->gpu());
  Pass();
  EXPECT_EQ(Job(first->job_id())->state(), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(ToJob(*Job(first->job_id()), clock_.Now()).attached());
  EXPECT_EQ(agents_.calls("StartWorker"), 0) << "launching is not ours";
  const std::string queued = Submit(4);
  Pass();
  EXPECT_EQ(Job(queued)->state(), v1::JOB_STATE_QUEUED) << "two GPUs are taken";
  EXPECT_TRUE(Detach(*first, 0).ok());
  EXPECT_TRUE(Detach(*first, 0).ok()) << "twice is once";
  EXPECT_TRUE(Detach(*second, 0).ok());
  Pass();
  EXPECT_EQ(Job(first->job_id())->state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Job(queued)->state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(agents_.calls("StopWorker"), 0);
}

TEST_F(Attach, TheSameProcessAsksTwiceAndHasOneSeatAnotherWaits) {
  agents_.Script("AdoptWorker", {absl::UnavailableError("restarting")});
  EXPECT_TRUE(absl::IsUnavailable(desk_->Attach(Rank(0, 2, 100)).status()));
  const auto first = desk_->Attach(Rank(0, 2, 100));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(desk_->Attach(Rank(0, 2, 100))->gpu(), first->gpu());
  const absl::Status other = desk_->Attach(Rank(0, 2, 200)).status();
  EXPECT_TRUE(absl::IsUnavailable(other)) << other;
  EXPECT_TRUE(absl::StrContains(other.message(), "process 100 on node a")) << other;
}

TEST_F(Attach, ARankThatDisappearsFailsTheJobWithoutASignalToTheOthers) {
  const std::string id = RunTwo();
  Disappear(second_.worker_id());
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(agents_.calls("StopWorker"), 0) << "torchrun ends what torchrun started";
  ASSERT_TRUE(Detach(first_, 1).ok());
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "rank 1 on node a disappeared"))
      << Job(id)->message();
}

TEST_F(Attach, ASecondRunWithTheSameKeyIsANewJobAlsoForANewCoordinator) {
  const std::string id = RunTwo();
  ASSERT_TRUE(Detach(first_, 0).ok());
  ASSERT_TRUE(Detach(second_, 0).ok());
  Pass();
  const std::string next = RunTwo();
  EXPECT_NE(next, id);
  Restart();
  for (const char* node : {"a", "b"}) {
    Register(node, 1);
    Report(node);
  }
  desk_ = std::make_unique<AttachDesk>(epoch_, book_.get(), registry_.get(), &agents_);
  EXPECT_EQ(desk_->Attach(Rank(0, 2, 100))->job_id(), next) << "it runs on";
}

TEST_F(Attach, IsCancelledAndPreemptedOnlyBySignal) {
  const std::string id = RunTwo();
  for (const absl::Status& refused : {book_->Cancel(id).status(), book_->Preempt(id).status()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "torchrun")) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "--signal")) << refused;
  }
  ASSERT_TRUE(book_->Cancel(id, /*may_signal=*/true).ok());
  Pass();
  EXPECT_EQ(agents_.calls("StopWorker"), 2);
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_CANCELLED);
}

TEST_F(Attach, SaysWhatIsWrongAndWhatToDo) {
  v1::AttachJobRequest nowhere = Rank(0, 1, 100, "");
  nowhere.set_hostname("laptop");
  const absl::Status no_node = desk_->Attach(nowhere).status();
  EXPECT_TRUE(absl::IsNotFound(no_node));
  EXPECT_TRUE(absl::StrContains(no_node.message(), "a, b")) << no_node;
  EXPECT_TRUE(absl::StrContains(no_node.message(), "HYPERFRAMES_NODE")) << no_node;
  v1::AttachJobRequest elsewhere = Rank(0, 1, 100);
  elsewhere.set_gpu("SIM-b-0");
  EXPECT_TRUE(absl::IsInvalidArgument(desk_->Attach(elsewhere).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(desk_->Attach(Rank(2, 2, 100)).status()));
  EXPECT_TRUE(book_->List(10).empty()) << "nothing was queued for it";
  Submit(4);
  Pass();
  const absl::Status full = desk_->Attach(Rank(0, 1, 100)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_TRUE(absl::StrContains(full.message(), "hfctl submit")) << full;
}

TEST_F(Attach, AProcessThatIsNotOnItsNodeEndsTheJob) {
  agents_.Script("AdoptWorker", {absl::FailedPreconditionError("not here")});
  EXPECT_TRUE(absl::IsFailedPrecondition(desk_->Attach(Rank(0, 2, 100)).status()));
  Pass();
  ASSERT_EQ(book_->List(10).size(), 1u);
  EXPECT_EQ(book_->List(10)[0]->state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(book_->List(10)[0]->reason(), "attach_failed");
}

TEST_F(Attach, ARankThatNeverAttachesEndsTheStart) {
  const auto first = desk_->Attach(Rank(0, 2, 100));
  ASSERT_TRUE(first.ok());
  clock_.Advance(absl::Minutes(6));
  for (const char* node : {"a", "b"}) ASSERT_TRUE(*ledger_->Beat(node, 1, 1));
  Pass();
  EXPECT_EQ(Job(first->job_id())->reason(), "start_timeout");
  EXPECT_TRUE(absl::StrContains(Job(first->job_id())->message(), "rank 1"));
}

TEST_F(Attach, AnotherJobsTokenDetachesNobody) {
  RunTwo();
  v1::AttachJobResponse forged = first_;
  forged.set_job_token(std::string(32, '0'));
  EXPECT_TRUE(absl::IsPermissionDenied(Detach(forged, 0).status()));
  forged = first_;
  forged.set_worker_id("job-x-1-0");
  EXPECT_TRUE(absl::IsNotFound(Detach(forged, 0).status()));
}

}  // namespace
}  // namespace hyperframes
