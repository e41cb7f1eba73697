// Time limits, restarts and the cause of a failure.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/jobs/attempts.h"
#include "coordinator/jobs/job_life.h"

namespace hyperframes {
namespace {

// docs/cases.md C19.
TEST_F(JobLife, AWorkerThatSavesWithinItsGraceAtTheTimeLimitEndsAsTimeout) {
  agents_.LetWorkersSave();
  v1::JobSpec spec = Spec(1);
  spec.set_time_limit_s(1800);
  spec.set_grace_s(60);
  const std::string id = (*book_->Submit(spec, ""))->id();
  clock_.Advance(absl::Hours(1));  // In the queue: no part of its time.
  Pass();
  clock_.Advance(absl::Seconds(1799));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING);
  clock_.Advance(absl::Seconds(1));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(Job(id)->reason(), "time_limit");
  EXPECT_EQ(agents_.At("a").graces[id + "-1-0"], 60);
  clock_.Advance(absl::Seconds(45));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_STOPPING) << "it saves";
  agents_.Exit("a", id + "-1-0", 0);
  Report("a");
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_TIMEOUT);
  EXPECT_EQ(Job(id)->reason(), "time_limit");
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "30m")) << Job(id)->message();
  EXPECT_TRUE(book_->Active().empty());
}

TEST_F(JobLife, APreemptedJobSavesWithinItsGraceFreesItsGpusAndIsNotRestarted) {
  agents_.LetWorkersSave();
  v1::JobSpec spec = Spec(4);
  spec.set_grace_s(60);
  spec.set_max_restarts(5);
  const std::string id = (*book_->Submit(spec, ""))->id();
  Pass();
  const std::string urgent = Submit(4);
  ASSERT_TRUE(book_->Preempt(id).ok());
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(agents_.At("a").graces[Job(id)->workers(0).worker_id()], 60);
  EXPECT_EQ(Job(urgent)->state(), v1::JOB_STATE_QUEUED) << "it saves";
  const JobBook::Record stopping = Job(id);
  for (const v1::JobWorkerRecord& worker : stopping->workers()) {
    End(worker.node(), worker.worker_id(), worker.rank() == 0 ? 3 : 0);
  }
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_PREEMPTED);
  EXPECT_EQ(Job(id)->reason(), "preempted");
  EXPECT_EQ(Job(urgent)->state(), v1::JOB_STATE_RUNNING);
  clock_.Advance(absl::Hours(1));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_PREEMPTED);
}

TEST_F(JobLife, ATimeLimitOutlivesTheCoordinator) {
  v1::JobSpec spec = Spec(1);
  spec.set_time_limit_s(1800);
  const std::string id = (*book_->Submit(spec, ""))->id();
  Pass();
  clock_.Advance(absl::Seconds(1000));
  Restart();
  Register("a", 1);
  Register("b", 1);
  Report("a");
  clock_.Advance(absl::Seconds(799));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING);
  clock_.Advance(absl::Seconds(1));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_TIMEOUT);
}

TEST_F(JobLife, AnEndBeforeTheTimeLimitIsSeenCountsAsItsOwn) {
  v1::JobSpec spec = Spec(1);
  spec.set_time_limit_s(10);
  const std::string id = (*book_->Submit(spec, ""))->id();
  Pass();
  agents_.Exit("a", id + "-1-0", 0);
  clock_.Advance(absl::Seconds(11));
  Report("a");
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(JobLife, ARestartStopsAllRanksAndStartsThemOnceMoreOnTheirGpus) {
  const std::string id = SubmitRestartable(2, 3);
  Pass();
  EXPECT_EQ(agents_.At("a").starts[id + "-1-0"].restart_count(), 0);
  const std::string gpu = Job(id)->workers(1).gpu();
  End("b", id + "-1-1", 3, 5);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RESTARTING);
  EXPECT_EQ(agents_.At("a").workers[id + "-1-0"].term_signal(), 15) << "all ranks stop";
  EXPECT_EQ(agents_.At("a").starts.count(id + "-2-0"), 0u) << "the pause";
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "rank 1 on node b exited with code 3"))
      << Job(id)->message();
  const std::string other = Submit(4);
  Pass();
  EXPECT_EQ(Job(other)->state(), v1::JOB_STATE_QUEUED) << "its GPUs are kept for it";
  ASSERT_TRUE(book_->Cancel(other).ok());
  clock_.Advance(absl::Seconds(1));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << Job(id)->message();
  EXPECT_EQ(Job(id)->restarts(), 1);
  EXPECT_EQ(Job(id)->workers(1).gpu(), gpu);
  const auto start = agents_.At("b").starts[id + "-2-1"];
  EXPECT_TRUE(start.has_restart_count());
  EXPECT_EQ(start.restart_count(), 1);
  End("a", id + "-2-0", 0);
  End("b", id + "-2-1", 0);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_SUCCEEDED);
  const v1::Job shown = ToJob(*Job(id), clock_.Now());
  EXPECT_EQ(shown.restarts(), 1);
  EXPECT_EQ(shown.attempt(), 2);
  ASSERT_EQ(shown.attempts_size(), 1);
  EXPECT_EQ(shown.attempts(0).attempt(), 1);
  EXPECT_EQ(shown.attempts(0).reason(), "exit_code");
  EXPECT_EQ(shown.attempts(0).steps(), 5);
  EXPECT_TRUE(
      absl::StrContains(shown.attempts(0).message(), "rank 1 on node b exited with code 3"));
}

TEST_F(JobLife, ARestartWaitsForLeasesAndForTheGpusBytes) {
  int leases = 2;
  reconciler_->set_leases_held([&](const std::string&) { return leases; });
  const std::string id = SubmitRestartable(1, 1);
  Pass();
  End("a", id + "-1-0", 3, 5);
  Pass();
  clock_.Advance(absl::Seconds(2));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RESTARTING);
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "2 leases")) << Job(id)->message();
  leases = 0;
  UseBytes("a", 7);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RESTARTING);
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "7 bytes on SIM-a-")) << Job(id)->message();
  UseBytes("a", 0);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING);
}

TEST_F(JobLife, PausesGrowAndAreBounded) {
  const std::string id = SubmitRestartable(1, 10);
  Pass();
  std::vector<int64_t> pauses;
  for (int attempt = 1; attempt <= 9; ++attempt) {
    End("a", absl::StrCat(id, "-", attempt, "-0"), 3, 5);
    Pass();
    ASSERT_EQ(Job(id)->state(), v1::JOB_STATE_RESTARTING);
    pauses.push_back(0);
    while (Job(id)->state() == v1::JOB_STATE_RESTARTING && pauses.back() < 100) {
      clock_.Advance(absl::Seconds(1));
      ++pauses.back();
      Pass();
    }
  }
  EXPECT_EQ(pauses, (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 60, 60, 60}));
  ASSERT_EQ(Job(id)->attempts_size(), kMostAttemptsKept) << "bounded";
  EXPECT_EQ(Job(id)->attempts(0).attempt(), 2) << "the oldest went";
}

TEST_F(JobLife, FailsWhenItsBudgetIsUsedUp) {
  const std::string id = SubmitRestartable(1, 1);
  Pass();
  End("a", id + "-1-0", 3, 5);
  Pass();
  clock_.Advance(absl::Seconds(1));
  Pass();
  End("a", id + "-2-0", 4, 5);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job(id)->reason(), "exit_code");
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "code 4; its budget of 1 restart is used up"))
      << Job(id)->message();
}

TEST_F(JobLife, ExitCode93AsksForNoRestart) {
  const std::string id = SubmitRestartable(1, 5);
  Pass();
  End("a", id + "-1-0", 93, 5);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "no restart")) << Job(id)->message();
}

TEST_F(JobLife, TwoAttemptsInARowWithoutAStepEndAsNoProgress) {
  const std::string id = SubmitRestartable(1, 10);
  Pass();
  const std::vector<int64_t> steps = {0, 5, 0, 0};
  for (size_t attempt = 0; attempt < steps.size(); ++attempt) {
    ASSERT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << attempt;
    End("a", absl::StrCat(id, "-", attempt + 1, "-0"), 3, steps[attempt]);
    Pass();
    clock_.Advance(absl::Minutes(1));
    Pass();
  }
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_NO_PROGRESS);
  EXPECT_EQ(Job(id)->reason(), "no_progress");
  EXPECT_EQ(Job(id)->restarts(), 3);
  EXPECT_TRUE(book_->Active().empty());
}

TEST_F(JobLife, AJobBetweenTwoAttemptsCanBeCancelledAndSurvivesItsCoordinator) {
  const std::string first = SubmitRestartable(1, 1);
  const std::string second = SubmitRestartable(1, 1);
  Pass();
  for (const std::string& id : {first, second}) {
    End(Job(id)->workers(0).node(), id + "-1-0", 3, 5);
  }
  Pass();
  ASSERT_TRUE(book_->Cancel(first).ok());
  Restart();
  Register("a", 1);
  Register("b", 1);
  Pass();
  EXPECT_EQ(Job(first)->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Job(second)->state(), v1::JOB_STATE_RESTARTING);
  clock_.Advance(absl::Seconds(1));
  Pass();
  EXPECT_EQ(Job(second)->state(), v1::JOB_STATE_RUNNING);
}

TEST_F(JobLife, ATimeLimitCountsThePausesOfRestarts) {
  v1::JobSpec spec = Spec(1);
  spec.set_max_restarts(3);
  spec.set_time_limit_s(10);
  const std::string id = (*book_->Submit(spec, ""))->id();
  Pass();
  clock_.Advance(absl::Seconds(9.5));
  End("a", id + "-1-0", 3, 5);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RESTARTING);
  clock_.Advance(absl::Seconds(0.6));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_TIMEOUT);
}

TEST_F(JobLife, ARankThatMayStillRunOnALostNodeHoldsTheRestart) {
  const std::string id = SubmitRestartable(2, 1);
  Pass();
  MakeOffline();
  Register("a", 2);
  End("a", id + "-1-0", 3, 5);
  Pass();
  clock_.Advance(absl::Seconds(5));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RESTARTING);
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "node b is OFFLINE")) << Job(id)->message();
  Register("b", 2);
  Report("b");
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << Job(id)->message();
}

TEST_F(JobLife, NamesTheRankThatFailedFirstAlthoughItIsHeardOfLast) {
  const std::string id = Submit(3);
  Pass();
  const auto node = [&](int rank) { return Job(id)->workers(rank).node(); };
  ASSERT_NE(node(0), node(2));
  clock_.Advance(absl::Seconds(10));
  agents_.LetWorkersSave();
  End(node(0), id + "-1-0", 1, 0, /*ended_ago_s=*/1);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_STOPPING);
  End(node(2), id + "-1-2", 7, 0, /*ended_ago_s=*/3);
  End(node(1), id + "-1-1", 1, 0, /*ended_ago_s=*/2);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "rank 2 on node")) << Job(id)->message();
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "code 7")) << Job(id)->message();
}

}  // namespace
}  // namespace hyperframes
