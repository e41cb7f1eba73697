#include "coordinator/jobs/reconciler.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/jobs/job_life.h"
#include "coordinator/jobs/job_state.h"

namespace hyperframes {
namespace {

TEST_F(JobLife, RunsAllRanksAndSucceedsWhenAllExitWithZero) {
  const std::string id = Submit(2);
  Pass();
  ASSERT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << Job(id)->message();
  const auto start = agents_.At("b").starts[id + "-1-1"];
  EXPECT_EQ(start.world_size(), 2);
  EXPECT_EQ(start.master_address(), "127.0.0.1");
  EXPECT_EQ(start.master_port(), agents_.At("a").ports[id]);
  EXPECT_EQ(start.job_token(), Job(id)->token());
  EXPECT_EQ(start.coordinator_address(), "127.0.0.1:7461");
  EXPECT_EQ(start.epoch(), 1);
  agents_.Exit("a", id + "-1-0", 0);
  Report("a");
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING);
  agents_.Exit("b", id + "-1-1", 0);
  Report("b");
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_SUCCEEDED);
}

// docs/cases.md C17, the coordinator's half: each job gets the port that its agent holds for it.
TEST_F(JobLife, TwoJobsOnOneHostGetTwoPorts) {
  const v1::JobSpec packed = Spec(1, v1::JobSpec::PLACEMENT_PACK);
  const std::string first = (*book_->Submit(packed, ""))->id();
  const std::string second = (*book_->Submit(packed, ""))->id();
  Pass();
  EXPECT_EQ(Job(first)->workers(0).node(), Job(second)->workers(0).node());
  EXPECT_NE(Job(first)->master_port(), Job(second)->master_port());
  EXPECT_NE(Job(first)->master_port(), 0);
}

TEST_F(JobLife, NumbersTheNodesOfAnUnevenJobWithoutAGap) {
  ASSERT_TRUE(book_->Submit(Spec(3, v1::JobSpec::PLACEMENT_PACK), "").ok());
  Pass();
  std::map<std::string, std::set<int>> by_node;
  for (const char* node : {"a", "b"}) {
    for (const auto& start : agents_.At(node).starts) {
      ASSERT_TRUE(start.second.has_group_rank());
      ASSERT_EQ(start.second.local_gpus_size(), start.second.local_world_size());
      EXPECT_EQ(start.second.local_gpus(start.second.local_rank()), start.second.gpu());
      by_node[node].insert(start.second.group_rank());
    }
  }
  EXPECT_EQ(by_node["a"], std::set<int>({0})) << "two ranks";
  EXPECT_EQ(by_node["b"], std::set<int>({1})) << "one rank, which is the job's third";
}

TEST_F(JobLife, KeepsTheLastCountersOfAWorkerThatHasEnded) {
  const std::string id = Submit(1);
  Pass();
  std::vector<v1::WorkerReport> workers = agents_.Workers("a");
  ASSERT_EQ(workers.size(), 1u);
  workers[0].set_steps(3);
  ASSERT_TRUE(reports_->Apply("a", workers).ok());
  workers[0].set_state(v1::WORKER_STATE_EXITED);
  workers[0].set_steps(7);
  workers[0].set_activation_peak_bytes(100);
  ASSERT_TRUE(reports_->Apply("a", workers).ok());
  Pass();
  EXPECT_EQ(Job(id)->workers(0).report().steps(), 7);
  EXPECT_EQ(Job(id)->workers(0).report().activation_peak_bytes(), 100);
}

TEST_F(JobLife, TellsANodeWhichOfItsJobsAreUnfinished) {
  const std::string id = Submit(1);
  EXPECT_TRUE(reports_->UnfinishedJobs("a").empty()) << "queued";
  Pass();
  EXPECT_EQ(reports_->UnfinishedJobs("a"), std::vector<std::string>({id}));
  EXPECT_TRUE(reports_->UnfinishedJobs("b").empty());
  agents_.Exit("a", id + "-1-0", 0);
  Report("a");
  Pass();
  EXPECT_TRUE(reports_->UnfinishedJobs("a").empty());
}

TEST_F(JobLife, FailsWithTheRankTheNodeAndTheExitCode) {
  const std::string id = Submit(2);
  Pass();
  agents_.Exit("b", id + "-1-1", 3);
  Report("b");
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job(id)->reason(), "exit_code");
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "rank 1 on node b exited with code 3"));
  EXPECT_EQ(agents_.At("a").workers[id + "-1-0"].term_signal(), 15);
  EXPECT_TRUE(book_->Active().empty());
}

TEST_F(JobLife, NamesTheSignalWhenARankIsKilledBesidesItsPeersExit) {
  const std::string id = Submit(2);
  Pass();
  agents_.Exit("a", id + "-1-0", 1);
  agents_.Exit("b", id + "-1-1", 0, 9);
  Report("a");
  Report("b");
  Pass();
  EXPECT_EQ(Job(id)->reason(), "signal");
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "rank 1 on node b was ended by signal 9"));
}

TEST_F(JobLife, CancelStopsTheWorkersAndFreesTheGpus) {
  const std::string id = Submit(4);
  Pass();
  ASSERT_TRUE(book_->Cancel(id).ok());
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_CANCELLED);
  const std::string next = Submit(4);
  Pass();
  EXPECT_EQ(Job(next)->state(), v1::JOB_STATE_RUNNING);
}

// docs/cases.md C18.
TEST_F(JobLife, ASmallJobPassesAnImpossibleHeadAndAGangIsNeverHalfStarted) {
  const std::string impossible = Submit(5);
  const std::string running = Submit(3);
  const std::string half = Submit(2);
  const std::string small = Submit(1);
  Pass();
  EXPECT_EQ(Job(impossible)->state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job(impossible)->reason(), "not_enough_gpus");
  EXPECT_TRUE(absl::StrContains(Job(impossible)->message(), "at most 4 ranks"));
  EXPECT_EQ(Job(running)->state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job(half)->state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job(half)->workers_size(), 0);
  EXPECT_TRUE(absl::StrContains(Job(half)->message(), "waits for 2 of 2 GPUs"))
      << Job(half)->message();
  EXPECT_TRUE(absl::StrContains(Job(half)->message(), "; 1 job ahead")) << Job(half)->message();
  EXPECT_EQ(Job(small)->state(), v1::JOB_STATE_RUNNING);
}

TEST_F(JobLife, AsksABusyAgentAgainAndStartsEachWorkerOnce) {
  agents_.Script("ReservePort", {absl::UnavailableError("restarting")});
  agents_.Script("StartWorker", {absl::DeadlineExceededError("slow"), absl::OkStatus()});
  const std::string id = Submit(2);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_ADMITTED);
  clock_.Advance(absl::Seconds(1));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_STARTING);
  clock_.Advance(absl::Seconds(1));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(agents_.calls("StartWorker"), 3);
}

TEST_F(JobLife, AWorkerThatCannotBeStartedFailsTheJobAndStopsTheOthers) {
  agents_.Script("StartWorker", {absl::OkStatus(), absl::InvalidArgumentError("no such program")});
  const std::string id = Submit(2);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job(id)->reason(), "start_failed");
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "no such program"));
  EXPECT_TRUE(book_->Active().empty());
}

TEST_F(JobLife, AWorkerThatNeverRunsEndsTheStart) {
  agents_.Script("StartWorker", std::deque<absl::Status>(2, absl::UnavailableError("no")));
  const std::string id = Submit(1);
  Pass();
  clock_.Advance(absl::Minutes(6));
  ASSERT_TRUE(*ledger_->Beat("a", 1, 1));
  Pass();
  EXPECT_EQ(Job(id)->reason(), "start_timeout");
}

TEST_F(JobLife, AnOfflineNodeDoesNotEndARunningJob) {
  const std::string id = Submit(2);
  Pass();
  MakeOffline();
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "OFFLINE")) << Job(id)->message();
  Register("a", 2);
  Register("b", 2);
  EXPECT_TRUE(Report("a").empty());
  EXPECT_TRUE(Report("b").empty());
  Pass();
  EXPECT_EQ(Job(id)->message(), "all 2 ranks run");
}

TEST_F(JobLife, AWorkerThatItsRestartedAgentDoesNotKnowIsLost) {
  const std::string id = Submit(2);
  Pass();
  agents_.Forget("b");
  Register("b", 2);
  Report("b");
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << "one list may be older than the worker";
  Report("b");
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job(id)->reason(), "worker_lost");
}

TEST_F(JobLife, EverythingGoesOnAfterACoordinatorWasKilled) {
  const std::string running = Submit(2);
  Pass();
  const std::string queued = Submit(4);
  const std::string stopping = Submit(1);
  Pass();
  ASSERT_TRUE(book_->Cancel(stopping).ok());
  Restart();
  Pass();  // Before any agent is back: nothing may be judged.
  EXPECT_EQ(Job(running)->state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job(stopping)->state(), v1::JOB_STATE_STOPPING);
  Register("a", 1);
  Register("b", 1);
  EXPECT_TRUE(Report("a").empty());
  EXPECT_TRUE(Report("b").empty());
  Pass();
  EXPECT_EQ(Job(stopping)->state(), v1::JOB_STATE_CANCELLED);
  agents_.Exit("a", running + "-1-0", 0);
  agents_.Exit("b", running + "-1-1", 0);
  Report("a");
  Report("b");
  Pass();
  EXPECT_EQ(Job(running)->state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Job(queued)->state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(agents_.At("a").seen_epoch, 2);
}

TEST_F(JobLife, AGpuStaysReservedWhileAnUnreachableWorkerMayRun) {
  const std::string id = Submit(4);
  Pass();
  MakeOffline();
  ASSERT_TRUE(book_->Cancel(id).ok());
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_CANCELLED);
  Register("a", 2);
  Register("b", 2);
  const std::string next = Submit(1);
  Pass();
  EXPECT_EQ(Job(next)->state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Report("a").size(), 2u) << "the agent is told to stop them";
  for (const auto& worker : agents_.Workers("a")) agents_.Exit("a", worker.worker_id(), 0, 9);
  Report("a");
  Pass();
  EXPECT_EQ(Job(next)->state(), v1::JOB_STATE_RUNNING);
}

TEST_F(JobLife, AnAgentIsToldToStopWhatNobodyKnows) {
  v1::WorkerReport stray;
  stray.set_worker_id("job-x-1-0");
  stray.set_job_id("job-x");
  stray.set_state(v1::WORKER_STATE_RUNNING);
  const auto unwanted = reports_->Apply("a", std::vector<v1::WorkerReport>{stray});
  ASSERT_TRUE(unwanted.ok());
  EXPECT_EQ(*unwanted, std::vector<std::string>{"job-x-1-0"});
}

TEST_F(JobLife, AnotherNodeCannotReportAWorkerThatIsNotItsOwn) {
  const std::string id = Submit(2);
  Pass();
  v1::WorkerReport forged = agents_.Workers("a")[0];
  forged.set_state(v1::WORKER_STATE_EXITED);
  forged.set_exit_code(7);
  ASSERT_TRUE(reports_->Apply("b", std::vector<v1::WorkerReport>{forged}).ok());
  EXPECT_EQ(Job(id)->workers(0).report().state(), v1::WORKER_STATE_RUNNING);
}

TEST_F(JobLife, AThreadReconcilesWhenWoken) {
  book_->set_on_change([this] { reconciler_->Wake(); });
  reconciler_->Start();
  const auto job = *book_->Submit(Spec(2), "");
  int64_t version = job->version();
  for (int i = 0; i < 20 && Job(job->id())->state() != v1::JOB_STATE_RUNNING; ++i) {
    version = (*book_->Watch(job->id(), version, absl::Seconds(5)))->version();
  }
  EXPECT_EQ(Job(job->id())->state(), v1::JOB_STATE_RUNNING);
  reconciler_->Stop();
}

}  // namespace
}  // namespace hyperframes
