// What a job's life does to its checkpoints, and they to it: states, dead ranks, time.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "coordinator/checkpoints/checkpoint_life.h"
#include "coordinator/jobs/job_state.h"

namespace hyperframes {
namespace {

TEST_F(CheckpointLife, AJobIsCheckpointingFromTheBeginToTheCommit) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_CHECKPOINTING);
  EXPECT_EQ(Job(job)->reason(), "checkpointing");
  EXPECT_EQ(Job(job)->message(), "saves step 50 (superframe 25) in /data/run");
  Pass();
  EXPECT_EQ(Job(job)->message(), "saves step 50 (superframe 25) in /data/run") << "still so";
  MakePrepared(job, 50);
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_CHECKPOINTING) << "PREPARED is not yet saved";
  ASSERT_TRUE(Commit(job, id).ok());
  Pass();
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job(job)->reason(), "running");
  EXPECT_EQ(Job(job)->message(), "its ranks run; step 50 is saved in /data/run");
}

TEST_F(CheckpointLife, AJobWhoseCheckpointIsAbortedRunsOnAndSaysWhy) {
  const std::string job = Run();
  ASSERT_TRUE(Abort(job, 1, Begin(job, 0, 50)->id(), "disk full").ok());
  Pass();
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job(job)->reason(), "running");
  EXPECT_EQ(Job(job)->message(), "its ranks run; step 50 was not saved: rank 1 gave up: disk full");
}

TEST_F(CheckpointLife, AJobWithTwoUnderWayIsCheckpointingUntilBothHaveEnded) {
  const std::string job = Run();
  const std::string first = MakePrepared(job, 50);
  const std::string second = Begin(job, 0, 50, 0, "/data/mirror")->id();
  ASSERT_TRUE(Commit(job, first).ok());
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_CHECKPOINTING);
  ASSERT_TRUE(Abort(job, 0, second, "").ok());
  EXPECT_EQ(See(second).message(), "rank 0 gave up");
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_RUNNING);
}

TEST_F(CheckpointLife, ASweepMendsAJobsStateThatWasNotWritten) {
  const std::string job = Run();
  store_.ScriptCommits({absl::OkStatus(), absl::UnavailableError("disk")});
  const auto begun = Begin(job, 0, 50);
  ASSERT_TRUE(begun.ok()) << "the checkpoint is what counts: " << begun.status();
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_RUNNING);
  desk_->Sweep();
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_CHECKPOINTING);
  MakePrepared(job, 50);
  store_.ScriptCommits({absl::OkStatus(), absl::UnavailableError("disk")});
  ASSERT_TRUE(Commit(job, begun->id()).ok());
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_CHECKPOINTING);
  RestartCoordinator();
  Pass(1);
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_RUNNING);
}

TEST_F(CheckpointLife, OnlyAJobThatRunsSaves) {
  const std::string full = Run();
  const std::string other = Run();
  const std::string queued = Submit(2);
  Pass();
  ASSERT_EQ(Job(queued)->state(), v1::JOB_STATE_QUEUED);
  const absl::Status refused = Begin(queued, 0, 50).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(Says(refused, "QUEUED")) << refused;
  ASSERT_TRUE(book_->Cancel(full).ok());
  Pass();
  EXPECT_TRUE(absl::IsFailedPrecondition(Begin(full, 0, 50).status()));
}

TEST_F(CheckpointLife, EverybodyHearsOfTheRankThatDiedWhileTheOthersHadWritten) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  ASSERT_TRUE(Begin(job, 1, 50).ok());
  ASSERT_TRUE(Prepare(job, 0, id).ok());
  std::vector<std::thread> watchers;
  for (int i = 0; i < 3; ++i) {
    watchers.emplace_back([&] {
      const auto seen = desk_->Watch(id, v1::CHECKPOINT_STATE_OPEN, absl::Hours(1));
      ASSERT_TRUE(seen.ok()) << seen.status();
      EXPECT_EQ(seen->state(), v1::CHECKPOINT_STATE_ABORTED);
      EXPECT_TRUE(absl::StrContains(seen->message(), "rank 1 on node b was ended by signal 9"))
          << seen->message();
    });
  }
  agents_.Exit("b", job + "-1-1", 0, 9);
  Report("b");
  Pass(1);
  for (std::thread& watcher : watchers) watcher.join();
  EXPECT_EQ(aborts_["rank_failed"], 1);
}

TEST_F(CheckpointLife, ARestartedJobsOldCheckpointIsAbortedByTheNameOfTheRank) {
  const std::string job = Run(/*max_restarts=*/1);
  const std::string id = MakePrepared(job, 50);
  agents_.Exit("b", job + "-1-1", 3);
  Report("b");
  Pass(1);
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_RESTARTING) << "as from RUNNING";
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_ABORTED);
  EXPECT_TRUE(absl::StrContains(See(id).message(), "rank 1 on node b exited with code 3"))
      << See(id).message();
  const absl::Status commit = Commit(job, id).status();
  EXPECT_TRUE(absl::IsAborted(commit)) << commit;
}

TEST_F(CheckpointLife, ACommitThatComesAfterTheFailureIsRefusedBeforeAnySweep) {
  const std::string job = Run(/*max_restarts=*/1);
  const std::string id = MakePrepared(job, 50);
  reconciler_->set_also([] {});
  agents_.Exit("b", job + "-1-1", 3);
  Report("b");
  Pass(1);
  ASSERT_EQ(Job(job)->state(), v1::JOB_STATE_RESTARTING);
  const absl::Status commit = Commit(job, id).status();
  EXPECT_TRUE(absl::IsAborted(commit)) << commit;
  EXPECT_TRUE(Says(commit, "rank 1 on node b")) << commit;
}

TEST_F(CheckpointLife, AnAttemptThatTheCoordinatorDidNotSeeChangeIsStillOver) {
  const std::string job = Run(/*max_restarts=*/1);
  const std::string id = Begin(job, 0, 50)->id();
  reconciler_->set_also([] {});
  agents_.Exit("b", job + "-1-1", 3);
  Report("b");
  Pass();
  clock_.Advance(absl::Minutes(2));
  Pass(8);
  ASSERT_EQ(Job(job)->restarts(), 1) << Job(job)->message();
  for (const absl::Status& past :
       {Begin(job, 0, 50, /*attempt=*/0, "/data/untouched").status(), Prepare(job, 0, id).status(),
        Commit(job, id).status(), Abort(job, 0, id, "x").status(), Retire(job, id).status()}) {
    EXPECT_TRUE(absl::IsAborted(past)) << past;
    EXPECT_TRUE(Says(past, "calls for attempt 0, and attempt 1 has called")) << past;
  }
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_OPEN) << "a call of the past decides nothing";
  desk_->Sweep();
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_ABORTED);
  EXPECT_TRUE(absl::StrContains(See(id).message(), "restarted: attempt 1 follows attempt 0"))
      << See(id).message();
  const auto next = Begin(job, 0, 40, /*attempt=*/1);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(aborts_["superseded"], 1);
  const absl::Status stale = Begin(job, 0, 50, /*attempt=*/0).status();
  EXPECT_TRUE(absl::IsAborted(stale)) << stale;
  EXPECT_TRUE(Says(stale, "attempt 1")) << stale;
}

TEST_F(CheckpointLife, AWorkerSavesInItsGrace) {
  agents_.LetWorkersSave();
  const std::string job = Run();
  ASSERT_TRUE(book_->Cancel(job).ok());
  Pass(1);
  ASSERT_EQ(Job(job)->state(), v1::JOB_STATE_STOPPING);
  const std::string id = MakePrepared(job, 50);
  // Its part is written, so it may go.
  agents_.Exit("b", job + "-1-1", 0);
  Report("b");
  Pass();
  ASSERT_EQ(Job(job)->state(), v1::JOB_STATE_STOPPING) << "and stays so while it saves";
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_PREPARED);
  ASSERT_TRUE(Commit(job, id).ok());
  agents_.Exit("a", job + "-1-0", 0);
  Report("a");
  Pass();
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_COMMITTED);
}

TEST_F(CheckpointLife, WithoutRankZeroNobodyCommits) {
  agents_.LetWorkersSave();
  const std::string job = Run();
  ASSERT_TRUE(book_->Cancel(job).ok());
  Pass(1);
  const std::string id = MakePrepared(job, 50);
  agents_.Exit("a", job + "-1-0", 0, 9);
  Report("a");
  Pass(1);
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_ABORTED);
  EXPECT_TRUE(absl::StrContains(See(id).message(),
                                "rank 0 on node a was ended by signal 9 before it had committed"))
      << See(id).message();
}

TEST_F(CheckpointLife, ARankThatLeavesWithoutItsPartEndsTheCheckpoint) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  agents_.Exit("b", job + "-1-1", 0);
  Report("b");
  Pass(1);
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_RUNNING) << "rank 0 runs on";
  EXPECT_TRUE(absl::StrContains(See(id).message(), "rank 1 on node b exited with code 0 before"))
      << See(id).message();
}

TEST_F(CheckpointLife, AJobThatEndsTakesItsOpenCheckpointWithIt) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  for (const char* node : {"a", "b"}) {
    agents_.Exit(node, absl::StrCat(job, "-1-", node[0] - 'a'), 0);
    Report(node);
  }
  Pass(1);
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_SUCCEEDED) << "as from RUNNING";
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_ABORTED);
  EXPECT_EQ(See(id).message(), absl::StrCat("job ", job, " is SUCCEEDED"));
  EXPECT_EQ(aborts_["job_ended"], 1);
}

TEST_F(CheckpointLife, ACheckpointingJobHasATimeLimitAndCanBeCancelled) {
  v1::JobSpec spec = Spec(2);
  spec.set_time_limit_s(60);
  const std::string limited = (*book_->Submit(spec, ""))->id();
  const std::string cancelled = Run();
  ASSERT_TRUE(Begin(limited, 0, 50).ok());
  ASSERT_TRUE(Begin(cancelled, 0, 50, 0, "/data/other").ok());
  clock_.Advance(absl::Seconds(61));
  ASSERT_TRUE(book_->Cancel(cancelled).ok());
  Pass();
  EXPECT_EQ(Job(limited)->state(), v1::JOB_STATE_TIMEOUT);
  EXPECT_EQ(Job(cancelled)->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(checkpoint_book_->UnderWay().empty());
}

TEST_F(CheckpointLife, WithoutAnythingNewItIsAbortedAndTheMissingRanksAreNamed) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  clock_.Advance(absl::Minutes(9));
  ASSERT_TRUE(Prepare(job, 0, id).ok());
  clock_.Advance(absl::Minutes(9));
  Pass(1);
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_OPEN) << "rank 0 has reported since";
  clock_.Advance(absl::Minutes(1));
  Pass(1);
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_ABORTED);
  EXPECT_EQ(See(id).message(), "nothing new for 10m: rank 1 has not reported its part");
  EXPECT_EQ(aborts_["timeout"], 1);
  EXPECT_EQ(Job(job)->state(), v1::JOB_STATE_RUNNING);
  const std::string second = MakePrepared(job, 100);
  clock_.Advance(absl::Minutes(10));
  Pass(1);
  EXPECT_EQ(See(second).message(), "nothing new for 10m: rank 0 has not committed it");
}

TEST_F(CheckpointLife, ARepeatedCallIsNothingNew) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  ASSERT_TRUE(Prepare(job, 0, id).ok());
  clock_.Advance(absl::Minutes(9));
  ASSERT_TRUE(Prepare(job, 0, id).ok());
  ASSERT_TRUE(Begin(job, 0, 50).ok());
  clock_.Advance(absl::Minutes(1));
  Pass(1);
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_ABORTED);
}

TEST_F(CheckpointLife, TheTimeWithoutACoordinatorDoesNotCount) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  clock_.Advance(absl::Hours(3));
  RestartCoordinator();
  Pass(1);
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_OPEN);
  clock_.Advance(absl::Minutes(10));
  Pass(1);
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_ABORTED) << "but what follows does";
}

}  // namespace
}  // namespace hyperframes
