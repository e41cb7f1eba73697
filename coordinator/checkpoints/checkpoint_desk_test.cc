// The rules of every call, with ranks that behave, repeat themselves, or contradict each other.
#include "coordinator/checkpoints/checkpoint_desk.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/checkpoints/checkpoint_check.h"
#include "coordinator/checkpoints/checkpoint_life.h"

namespace hyperframes {
namespace {

TEST_F(CheckpointLife, GoesFromBeginThroughEveryRanksPartToTheCommit) {
  const std::string job = Run();
  const auto begun = Begin(job, 0, 50);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->state(), v1::CHECKPOINT_STATE_OPEN);
  EXPECT_EQ(begun->message(), "waits for rank 0, 1");
  EXPECT_EQ(begun->job_id(), job);
  EXPECT_EQ(begun->superframe_id(), 25);
  EXPECT_EQ(Begin(job, 1, 50)->id(), begun->id()) << "all ranks get the same";
  clock_.Advance(absl::Seconds(2));
  const auto first = Prepare(job, 1, begun->id());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->state(), v1::CHECKPOINT_STATE_OPEN);
  EXPECT_EQ(first->message(), "waits for rank 0");
  const absl::Status early = Commit(job, begun->id()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(early)) << early;
  EXPECT_TRUE(Says(early, "waits for rank 0")) << early;
  const auto second = Prepare(job, 0, begun->id());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->state(), v1::CHECKPOINT_STATE_PREPARED);
  EXPECT_EQ(second->message(), "");
  ASSERT_EQ(second->shards_size(), 2);
  EXPECT_EQ(second->shards(0).rank(), 0) << "by rank, whoever came first";
  EXPECT_EQ(second->shards(1).micro_batches(0), 3) << "in the order in which they ran";
  const auto committed = Commit(job, begun->id());
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->state(), v1::CHECKPOINT_STATE_COMMITTED);
  EXPECT_EQ(committed->save_s(), 2);
  EXPECT_EQ(saves_, std::vector<absl::Duration>{absl::Seconds(2)});
  EXPECT_TRUE(aborts_.empty());
}

TEST_F(CheckpointLife, ARepeatedCallGetsTheSameAnswerAndChangesNothing) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  EXPECT_EQ(Begin(job, 0, 50)->id(), id);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(Prepare(job, 0, id)->shards_size(), 1);
  }
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(Prepare(job, 1, id)->state(), v1::CHECKPOINT_STATE_PREPARED);
  }
  EXPECT_EQ(Begin(job, 1, 50)->state(), v1::CHECKPOINT_STATE_PREPARED);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(Commit(job, id)->state(), v1::CHECKPOINT_STATE_COMMITTED);
  }
  EXPECT_EQ(saves_.size(), 1u) << "one commit is counted once";
  EXPECT_EQ(Begin(job, 1, 50)->state(), v1::CHECKPOINT_STATE_COMMITTED);
  EXPECT_EQ(Prepare(job, 1, id)->state(), v1::CHECKPOINT_STATE_COMMITTED);
  const std::string next = Begin(job, 0, 100)->id();
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto aborted = Abort(job, 1, next, repeat == 0 ? "disk full" : "another reason");
    ASSERT_TRUE(aborted.ok()) << aborted.status();
    EXPECT_EQ(aborted->message(), "rank 1 gave up: disk full") << "the first reason stays";
  }
  EXPECT_EQ(aborts_["by_rank"], 1);
  const std::string third = MakeCommitted(job, 150);
  EXPECT_TRUE(Retire(job, id).ok());
  EXPECT_TRUE(absl::IsNotFound(Retire(job, id).status()));
  EXPECT_EQ(State(third), v1::CHECKPOINT_STATE_COMMITTED);
}

// The coordinator is killed between every two calls, and every call is made twice.
TEST_F(CheckpointLife, GoesOnAfterARestartOfTheCoordinatorBetweenEveryTwoCalls) {
  const std::string job = Run();
  std::string id;
  const std::vector<std::function<absl::StatusOr<v1::Checkpoint>()>> calls = {
      [&] { return Begin(job, 0, 50); },   [&] { return Begin(job, 1, 50); },
      [&] { return Prepare(job, 1, id); }, [&] { return Prepare(job, 0, id); },
      [&] { return Commit(job, id); },
  };
  for (const auto& call : calls) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto answer = call();
      ASSERT_TRUE(answer.ok()) << answer.status();
      if (id.empty()) id = answer->id();
      EXPECT_EQ(answer->id(), id);
      const v1::CheckpointState state = answer->state();
      RestartCoordinator();
      Pass();
      EXPECT_EQ(State(id), state);
      EXPECT_EQ(Job(job)->state(), state == v1::CHECKPOINT_STATE_COMMITTED
                                       ? v1::JOB_STATE_RUNNING
                                       : v1::JOB_STATE_CHECKPOINTING);
    }
  }
  const std::string next = Begin(job, 0, 100)->id();
  RestartCoordinator();
  ASSERT_TRUE(Abort(job, 1, next, "disk full").ok());
  RestartCoordinator();
  EXPECT_EQ(See(next).message(), "rank 1 gave up: disk full");
  MakeCommitted(job, 150);
  RestartCoordinator();
  ASSERT_TRUE(Retire(job, id).ok());
  RestartCoordinator();
  EXPECT_TRUE(absl::IsNotFound(Retire(job, id).status()));
}

TEST_F(CheckpointLife, ARankThatContradictsAnotherIsToldTheFieldAndBothValues) {
  const std::string job = Run();
  ASSERT_TRUE(Begin(job, 0, 50).ok());
  using Edit = std::function<void(v1::BeginCheckpointRequest*)>;
  const std::vector<std::pair<std::string, Edit>> edits = {
      {"name 'other': 'step-50'", [](auto* request) { request->set_name("other"); }},
      {"superframe_id '26': '25'", [](auto* request) { request->set_superframe_id(26); }},
      {"topology_hash 'zzz': 'abc123'", [](auto* request) { request->set_topology_hash("zzz"); }},
      {"world_size 3: job", [](auto* request) { request->set_world_size(3); }},
  };
  for (int committed = 0; committed < 2; ++committed) {
    for (const auto& edit : edits) {
      v1::BeginCheckpointRequest request = BeginOf(Caller(job, 1), 50);
      edit.second(&request);
      const absl::Status status = desk_->Begin(request).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_TRUE(Says(status, edit.first)) << status;
    }
    MakeCommitted(job, 50);
  }
}

TEST_F(CheckpointLife, ARankThatContradictsItselfIsToldTheField) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  ASSERT_TRUE(Prepare(job, 0, id).ok());
  v1::PrepareCheckpointRequest other = PartOf(Caller(job, 0), id);
  other.mutable_shard()->set_digest(std::string(64, 'b'));
  const absl::Status digest = desk_->Prepare(other).status();
  EXPECT_TRUE(absl::IsInvalidArgument(digest)) << digest;
  EXPECT_TRUE(Says(digest, "shard.digest")) << digest;
  other = PartOf(Caller(job, 0), id);
  other.mutable_shard()->set_bytes(1);
  EXPECT_TRUE(Says(desk_->Prepare(other).status(), "shard.bytes '1': '1000'"));
  other = PartOf(Caller(job, 0), id);
  other.mutable_shard()->set_micro_batches(0, 7);
  EXPECT_TRUE(Says(desk_->Prepare(other).status(), "shard.micro_batches"));
  other = PartOf(Caller(job, 0), id);
  other.mutable_shard()->set_rank(1);
  EXPECT_TRUE(Says(desk_->Prepare(other).status(), "shard.rank is 1, and rank 0"));
  EXPECT_EQ(See(id).shards(0).digest(), PartOf(Caller(job, 0), id).shard().digest());
}

TEST_F(CheckpointLife, ADirectoryHasOneUnderWayAtATime) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  const absl::Status second = Begin(job, 1, 100).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_TRUE(Says(second, "step 50") && Says(second, "step 100")) << second;
  EXPECT_TRUE(Begin(job, 0, 100, 0, "/data/other").ok()) << "another directory is another matter";
  MakePrepared(job, 50);
  EXPECT_TRUE(absl::IsFailedPrecondition(Begin(job, 0, 100).status())) << "PREPARED is under way";
  ASSERT_TRUE(Commit(job, id).ok());
  EXPECT_TRUE(Begin(job, 0, 100).ok());
}

TEST_F(CheckpointLife, TwoTrainingsDoNotShareADirectoryWhileBothRun) {
  const std::string first = Run();
  const std::string second = Run();
  ASSERT_TRUE(Begin(first, 0, 50).ok());
  const absl::Status taken = Begin(second, 0, 50).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(taken)) << taken;
  EXPECT_TRUE(Says(taken, first)) << taken;
  ASSERT_TRUE(book_->Cancel(first).ok());
  Pass();
  EXPECT_TRUE(Begin(second, 0, 50).ok()) << "its job has ended";
}

TEST_F(CheckpointLife, ACommittedStepOrNameIsNotBegunAgain) {
  const std::string job = Run(/*max_restarts=*/1);
  MakeCommitted(job, 50);
  v1::BeginCheckpointRequest renamed = BeginOf(Caller(job, 0), 51);
  renamed.set_name("step-50");
  const absl::Status name = desk_->Begin(renamed).status();
  EXPECT_TRUE(absl::IsAlreadyExists(name)) << name;
  EXPECT_TRUE(Says(name, "step-50")) << name;
  const std::string other = Run();
  const absl::Status step = Begin(other, 0, 50).status();
  EXPECT_TRUE(absl::IsAlreadyExists(step)) << step;
  EXPECT_TRUE(Says(step, "step 50 is committed in /data/run as step-50")) << step;
  const absl::Status attempt = Begin(job, 0, 50, /*attempt=*/1).status();
  EXPECT_TRUE(absl::IsAlreadyExists(attempt)) << "not a repeat: another attempt";
}

TEST_F(CheckpointLife, ANewerAttemptAbortsTheOlderOnesAndFencesIt) {
  const std::string job = Run();
  const std::string old = MakePrepared(job, 50);
  const auto newer = Begin(job, 1, 40, /*attempt=*/1);
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_NE(newer->id(), old);
  EXPECT_EQ(newer->attempt(), 1);
  EXPECT_EQ(State(old), v1::CHECKPOINT_STATE_ABORTED);
  EXPECT_TRUE(absl::StrContains(See(old).message(), "attempt 1")) << See(old).message();
  EXPECT_EQ(aborts_["superseded"], 1);
  for (const absl::Status& stale :
       {Begin(job, 0, 50).status(), Begin(job, 0, 40).status(),
        Prepare(job, 0, newer->id()).status(), Commit(job, newer->id()).status(),
        Abort(job, 0, newer->id(), "x").status(), Prepare(job, 0, old).status(),
        Commit(job, old).status()}) {
    EXPECT_TRUE(absl::IsAborted(stale)) << stale;
    EXPECT_TRUE(Says(stale, "attempt 1")) << stale;
  }
  EXPECT_EQ(State(newer->id()), v1::CHECKPOINT_STATE_OPEN);
}

TEST_F(CheckpointLife, ACallOfANewerAttemptEndsWhatAnOlderOneHasUnderWay) {
  const std::string job = Run();
  const std::string old = MakePrepared(job, 50);
  const absl::Status commit = Commit(job, old, 0, /*attempt=*/1).status();
  EXPECT_TRUE(absl::IsAborted(commit)) << "its files are the older attempt's: " << commit;
  EXPECT_EQ(State(old), v1::CHECKPOINT_STATE_ABORTED);
  const std::string kept = MakeCommitted(job, 60, /*attempt=*/1);
  EXPECT_TRUE(Commit(job, kept, 0, /*attempt=*/2).ok()) << "what is committed stays";
  const absl::Status past = Begin(job, 0, 70, /*attempt=*/0).status();
  EXPECT_TRUE(absl::IsAborted(past)) << "attempt 1 has committed since: " << past;
}

TEST_F(CheckpointLife, OnlyTheJobsOwnRanksAreLetIn) {
  const std::string job = Run();
  const std::string stranger = Run();
  const std::string id = MakePrepared(job, 50);
  v1::BeginCheckpointRequest request = BeginOf(Caller(job, 0), 50);
  request.mutable_caller()->set_job_token(std::string(32, '0'));
  EXPECT_TRUE(absl::IsPermissionDenied(desk_->Begin(request).status()));
  request.mutable_caller()->set_job_id("job-none");
  EXPECT_TRUE(absl::IsNotFound(desk_->Begin(request).status()));
  for (const absl::Status& denied :
       {Prepare(stranger, 0, id).status(), Commit(stranger, id).status(),
        Abort(stranger, 0, id, "x").status(), Retire(stranger, id).status()}) {
    EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  }
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_PREPARED);
  const absl::Status rank = Begin(job, 2, 50).status();
  EXPECT_TRUE(absl::IsInvalidArgument(rank)) << rank;
  EXPECT_TRUE(Says(rank, "caller.rank is 2")) << rank;
  EXPECT_TRUE(absl::IsInvalidArgument(Begin(job, -1, 50).status()));
  EXPECT_TRUE(Says(Begin(job, 0, 50, -1).status(), "caller.attempt is -1"));
  const absl::Status commit = Commit(job, id, /*rank=*/1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(commit)) << commit;
  EXPECT_TRUE(Says(commit, "rank 0 commits")) << commit;
}

TEST_F(CheckpointLife, AnUnknownCheckpointIsNotFound) {
  const std::string job = Run();
  for (const absl::Status& unknown :
       {Prepare(job, 0, "ckpt-none").status(), Commit(job, "ckpt-none").status(),
        Abort(job, 0, "ckpt-none", "x").status(), Retire(job, "ckpt-none").status(),
        desk_->Watch("ckpt-none", v1::CHECKPOINT_STATE_OPEN, absl::Hours(1)).status()}) {
    EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
    EXPECT_TRUE(Says(unknown, "ckpt-none")) << unknown;
  }
}

TEST_F(CheckpointLife, AnAbortedOneAnswersEveryRankWithTheReason) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  ASSERT_TRUE(Begin(job, 1, 50).ok());
  std::thread watcher([&] {
    const auto seen = desk_->Watch(id, v1::CHECKPOINT_STATE_OPEN, absl::Hours(1));
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_EQ(seen->state(), v1::CHECKPOINT_STATE_ABORTED);
    EXPECT_EQ(seen->message(), "rank 1 gave up: no space left on /data");
  });
  ASSERT_TRUE(Abort(job, 1, id, "no space left on /data").ok());
  watcher.join();
  for (const absl::Status& aborted : {Prepare(job, 0, id).status(), Commit(job, id).status()}) {
    EXPECT_TRUE(absl::IsAborted(aborted)) << aborted;
    EXPECT_TRUE(Says(aborted, "rank 1 gave up: no space left on /data")) << aborted;
  }
}

TEST_F(CheckpointLife, ACommittedOneIsNotAborted) {
  const std::string job = Run();
  const std::string id = MakeCommitted(job, 50);
  const absl::Status refused = Abort(job, 1, id, "too late").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_COMMITTED);
}

TEST_F(CheckpointLife, AnAbortedStepCanBeTriedAgain) {
  const std::string job = Run();
  const std::string first = Begin(job, 0, 50)->id();
  ASSERT_TRUE(Begin(job, 1, 50).ok());
  ASSERT_TRUE(Abort(job, 1, first, "disk full").ok());
  const std::string second = MakeCommitted(job, 50);
  EXPECT_NE(second, first);
}

TEST_F(CheckpointLife, ALateRankHearsOfTheAbortInsteadOfWaitingAlone) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  ASSERT_TRUE(Abort(job, 0, id, "disk full").ok());
  const absl::Status late = Begin(job, 1, 50).status();
  EXPECT_TRUE(absl::IsAborted(late)) << late;
  EXPECT_TRUE(Says(late, "disk full")) << late;
  EXPECT_EQ(checkpoint_book_->UnderWay().size(), 0u);
  EXPECT_TRUE(Begin(job, 0, 100).ok()) << "nothing stands in the way of the next";
}

TEST_F(CheckpointLife, AReasonIsCutAtACharacter) {
  const std::string job = Run();
  const std::string id = Begin(job, 0, 50)->id();
  std::string reason(511, 'x');
  reason += "\xc3\xa4 and more";
  ASSERT_TRUE(Abort(job, 0, id, reason).ok());
  EXPECT_EQ(See(id).message(), "rank 0 gave up: " + std::string(511, 'x'));
}

TEST_F(CheckpointLife, RetiresAllButTheNewestCommittedOne) {
  const std::string job = Run();
  const std::string old = MakeCommitted(job, 50);
  const absl::Status only = Retire(job, old).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(only)) << only;
  const std::string open = Begin(job, 0, 100)->id();
  EXPECT_TRUE(absl::IsFailedPrecondition(Retire(job, open).status())) << "under way";
  ASSERT_TRUE(Begin(job, 1, 100).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Retire(job, old).status())) << "100 is not committed yet";
  MakeCommitted(job, 100);
  const auto retired = Retire(job, old);
  ASSERT_TRUE(retired.ok()) << retired.status();
  EXPECT_EQ(retired->global_step(), 50);
  EXPECT_TRUE(absl::IsNotFound(desk_->Watch(old, v1::CHECKPOINT_STATE_OPEN, {}).status()));
}

TEST_F(CheckpointLife, ATrainingThatGoesOnAsANewJobRetiresWhatTheOldOneLeft) {
  const std::string first = Run();
  const std::string old = MakeCommitted(first, 50);
  const std::string second = Run();
  MakeCommitted(second, 100);
  const absl::Status running = Retire(second, old).status();
  EXPECT_TRUE(absl::IsPermissionDenied(running)) << running;
  ASSERT_TRUE(book_->Cancel(first).ok());
  Pass();
  EXPECT_TRUE(Retire(second, old).ok());
}

TEST_F(CheckpointLife, OneJobHasABoundedNumberUnderWay) {
  const std::string job = Run();
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(Begin(job, 0, 50, 0, absl::StrCat("/data/", i)).ok());
  }
  const absl::Status refused = Begin(job, 0, 50, 0, "/data/16").status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
}

TEST_F(CheckpointLife, ListsAreBoundedAndNewestFirst) {
  const std::string job = Run();
  MakeCommitted(job, 50);
  MakeCommitted(job, 100);
  ASSERT_TRUE(Begin(job, 0, 150).ok());
  v1::ListCheckpointsRequest request;
  EXPECT_EQ(desk_->List(request)->checkpoints_size(), 3);
  EXPECT_EQ(desk_->List(request)->checkpoints(0).global_step(), 150);
  EXPECT_EQ(desk_->List(request)->checkpoints(0).message(), "waits for rank 0, 1");
  request.set_committed_only(true);
  request.set_limit(1);
  ASSERT_EQ(desk_->List(request)->checkpoints_size(), 1);
  EXPECT_EQ(desk_->List(request)->checkpoints(0).global_step(), 100);
  for (int wrong : {-1, 1001}) {
    request.set_limit(wrong);
    EXPECT_TRUE(absl::IsInvalidArgument(desk_->List(request).status()));
  }
}

TEST_F(CheckpointLife, AFailedWriteIsNoAnswer) {
  const std::string job = Run();
  store_.ScriptCommits({absl::UnavailableError("disk")});
  EXPECT_TRUE(absl::IsUnavailable(Begin(job, 0, 50).status()));
  const std::string id = Begin(job, 0, 50)->id();
  store_.ScriptCommits({absl::UnavailableError("disk")});
  EXPECT_TRUE(absl::IsUnavailable(Prepare(job, 0, id).status()));
  EXPECT_EQ(See(id).shards_size(), 0);
  MakePrepared(job, 50);
  store_.ScriptCommits({absl::UnavailableError("disk")});
  EXPECT_TRUE(absl::IsUnavailable(Commit(job, id).status()));
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_PREPARED);
  EXPECT_TRUE(saves_.empty());
  EXPECT_TRUE(Commit(job, id).ok());
}

}  // namespace
}  // namespace hyperframes
