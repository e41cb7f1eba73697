#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "coordinator/jobs/job_book.h"
#include "coordinator/jobs/job_spec.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/placement.h"
#include "coordinator/store/memory_store.h"

namespace hyperframes {
namespace {

v1::JobSpec Spec(int ranks = 1) {
  v1::JobSpec spec;
  spec.set_name("train");
  spec.add_command("/bin/true");
  spec.set_ranks(ranks);
  return spec;
}

TEST(JobState, AllowsExactlyTheListedMoves) {
  const std::set<std::pair<int, int>> legal = {
      {v1::JOB_STATE_QUEUED, v1::JOB_STATE_ADMITTED},
      {v1::JOB_STATE_QUEUED, v1::JOB_STATE_CANCELLED},
      {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_STARTING},
      {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_QUEUED},
      {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING},
      {v1::JOB_STATE_STARTING, v1::JOB_STATE_RESTARTING},
      {v1::JOB_STATE_STARTING, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_RUNNING, v1::JOB_STATE_CHECKPOINTING},
      {v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUCCEEDED},
      {v1::JOB_STATE_RUNNING, v1::JOB_STATE_RESTARTING},
      {v1::JOB_STATE_RUNNING, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_CHECKPOINTING, v1::JOB_STATE_RUNNING},
      {v1::JOB_STATE_CHECKPOINTING, v1::JOB_STATE_SUCCEEDED},
      {v1::JOB_STATE_CHECKPOINTING, v1::JOB_STATE_RESTARTING},
      {v1::JOB_STATE_CHECKPOINTING, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_RESTARTING, v1::JOB_STATE_ADMITTED},
      {v1::JOB_STATE_RESTARTING, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_STOPPING, v1::JOB_STATE_FAILED},
      {v1::JOB_STATE_STOPPING, v1::JOB_STATE_CANCELLED},
      {v1::JOB_STATE_STOPPING, v1::JOB_STATE_TIMEOUT},
      {v1::JOB_STATE_STOPPING, v1::JOB_STATE_PREEMPTED},
      {v1::JOB_STATE_STOPPING, v1::JOB_STATE_NO_PROGRESS},
  };
  ASSERT_EQ(v1::JobState_ARRAYSIZE, 14)
      << "13 states and UNSPECIFIED: a new one has its moves here";
  for (int from = 0; from < v1::JobState_ARRAYSIZE; ++from) {
    for (int to = 0; to < v1::JobState_ARRAYSIZE; ++to) {
      EXPECT_EQ(LegalJobMove(static_cast<v1::JobState>(from), static_cast<v1::JobState>(to)),
                legal.count({from, to}) > 0)
          << JobStateName(static_cast<v1::JobState>(from)) << " to "
          << JobStateName(static_cast<v1::JobState>(to));
    }
  }
}

TEST(JobState, HasNoMoveOutOfAFinalState) {
  for (int from = 0; from < v1::JobState_ARRAYSIZE; ++from) {
    if (!IsFinalJobState(static_cast<v1::JobState>(from))) continue;
    for (int to = 0; to < v1::JobState_ARRAYSIZE; ++to) {
      EXPECT_FALSE(LegalJobMove(static_cast<v1::JobState>(from), static_cast<v1::JobState>(to)));
    }
  }
}

void ExpectBad(const v1::JobSpec& spec, const std::string& field) {
  const absl::Status status = ValidateJobSpec(spec);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << field;
  EXPECT_TRUE(absl::StrContains(status.message(), "spec." + field)) << status;
}

TEST(JobSpec, AcceptsAnOrdinaryJob) {
  v1::JobSpec spec = Spec(1024);
  (*spec.mutable_env())["MY_VARIABLE"] = "x";
  spec.set_working_directory("/srv");
  spec.set_grace_s(60);
  EXPECT_TRUE(ValidateJobSpec(spec).ok());
}

TEST(JobSpec, NamesTheFieldThatIsWrong) {
  for (const std::string& name : {std::string(), std::string("a b"), std::string(64, 'n')}) {
    v1::JobSpec spec = Spec();
    spec.set_name(name);
    ExpectBad(spec, "name");
  }
  v1::JobSpec none = Spec();
  none.clear_command();
  ExpectBad(none, "command");
  v1::JobSpec many = Spec();
  many.add_command(std::string(kMaxSpecTextBytes, 'x'));
  ExpectBad(many, "command");
  for (const int ranks : {0, -1, 1025}) ExpectBad(Spec(ranks), "ranks");
  v1::JobSpec relative = Spec();
  relative.set_working_directory("here");
  ExpectBad(relative, "working_directory");
  v1::JobSpec quota = Spec();
  quota.set_lent_bytes_quota(-1);
  ExpectBad(quota, "lent_bytes_quota");
  v1::JobSpec grace = Spec();
  grace.set_grace_s(std::numeric_limits<double>::quiet_NaN());
  ExpectBad(grace, "grace_s");
  for (const double limit : {-1.0, 1e12, std::numeric_limits<double>::quiet_NaN()}) {
    v1::JobSpec overlong = Spec();
    overlong.set_time_limit_s(limit);
    ExpectBad(overlong, "time_limit_s");
  }
  for (const int restarts : {-1, kMostRestarts + 1}) {
    v1::JobSpec restarted = Spec();
    restarted.set_max_restarts(restarts);
    ExpectBad(restarted, "max_restarts");
  }
  v1::JobSpec placement = Spec();
  placement.set_placement(static_cast<v1::JobSpec::Placement>(7));
  ExpectBad(placement, "placement");
}

TEST(JobSpec, RefusesVariablesThatAreOurs) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID",
                           "HYPERFRAMES_JOB_TOKEN", "CUDA_VISIBLE_DEVICES", "1X", "A-B", ""}) {
    v1::JobSpec spec = Spec();
    (*spec.mutable_env())[name] = "x";
    ExpectBad(spec, "env");
  }
}

TEST(JobSpec, RefusesAFieldThatItDoesNotKnow) {
  v1::JobSpec spec = Spec();
  spec.GetReflection()->MutableUnknownFields(&spec)->AddVarint(99, 1);
  const absl::Status status = ValidateJobSpec(spec);
  EXPECT_TRUE(absl::StrContains(status.message(), "number 99")) << status;
}

std::vector<FreeGpu> Gpus(const std::vector<std::pair<std::string, int>>& nodes) {
  std::vector<FreeGpu> free;
  for (const auto& node : nodes) {
    for (int i = 0; i < node.second; ++i) {
      free.push_back(FreeGpu{node.first, absl::StrCat(node.first, "-", i), i, false});
    }
  }
  return free;
}

std::vector<std::string> NodesOf(const std::vector<Seat>& seats) {
  std::vector<std::string> nodes;
  for (const Seat& seat : seats) nodes.push_back(seat.node);
  return nodes;
}

TEST(Placement, PackTakesTheFullestNodeThatFits) {
  const auto seats =
      PlaceGang(2, v1::JobSpec::PLACEMENT_PACK, Gpus({{"a", 8}, {"b", 2}, {"c", 4}}));
  EXPECT_EQ(NodesOf(*seats), (std::vector<std::string>{"b", "b"}));
}

TEST(Placement, PackTakesTheFewestNodes) {
  const auto seats =
      PlaceGang(5, v1::JobSpec::PLACEMENT_PACK, Gpus({{"a", 1}, {"b", 2}, {"c", 4}}));
  EXPECT_EQ(NodesOf(*seats), (std::vector<std::string>{"a", "c", "c", "c", "c"}));
  EXPECT_EQ((*seats)[4].local_rank, 3);
  EXPECT_EQ((*seats)[4].local_world_size, 4);
}

TEST(Placement, SpreadTakesOneGpuANode) {
  const auto seats = PlaceGang(2, v1::JobSpec::PLACEMENT_SPREAD, Gpus({{"a", 2}, {"b", 2}}));
  EXPECT_EQ(NodesOf(*seats), (std::vector<std::string>{"a", "b"}));
  const auto three = PlaceGang(3, v1::JobSpec::PLACEMENT_SPREAD, Gpus({{"a", 2}, {"b", 2}}));
  EXPECT_EQ(NodesOf(*three), (std::vector<std::string>{"a", "a", "b"}));
}

TEST(Placement, GivesAllRanksOrNone) {
  const auto seats = PlaceGang(5, v1::JobSpec::PLACEMENT_PACK, Gpus({{"a", 2}, {"b", 2}}));
  EXPECT_TRUE(absl::IsResourceExhausted(seats.status()));
}

TEST(Placement, LeavesLendingGpusForLast) {
  auto free = Gpus({{"a", 2}});
  free[0].lends = true;
  EXPECT_EQ((*PlaceGang(1, v1::JobSpec::PLACEMENT_PACK, free))[0].gpu, "a-1");
}

class Book : public testing::Test {
 protected:
  void SetUp() override { Reload(); }
  void Reload() {
    auto loaded = JobBook::Load(options_, &store_, &clock_);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    book_ = std::move(loaded).value();
  }
  absl::Status Move(const std::string& id, const std::vector<v1::JobState>& states) {
    for (const v1::JobState state : states) {
      const auto moved = book_->Update(id, [state](v1::JobRecord* record) {
        record->set_state(state);
        return absl::OkStatus();
      });
      if (!moved.ok()) return moved.status();
    }
    return absl::OkStatus();
  }

  MemoryStore store_;
  FakeClock clock_;
  JobBook::Options options_;
  std::unique_ptr<JobBook> book_;
};

TEST_F(Book, KeepsEveryAcknowledgedChangeAcrossARestart) {
  const std::string id = (*book_->Submit(Spec(2), "key"))->id();
  ASSERT_TRUE(Move(id, {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_STARTING}).ok());
  const int64_t version = (*book_->Get(id))->version();
  Reload();
  const auto job = book_->Get(id);
  ASSERT_TRUE(job.ok());
  EXPECT_EQ((*job)->state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ((*job)->version(), version);
  EXPECT_EQ((*book_->Submit(Spec(2), "key"))->id(), id);
}

TEST_F(Book, AcknowledgesNothingThatTheStoreRefused) {
  store_.ScriptCommits({absl::UnavailableError("disk")});
  EXPECT_TRUE(absl::IsUnavailable(book_->Submit(Spec(), "").status()));
  EXPECT_TRUE(book_->List(10).empty());
  const std::string id = (*book_->Submit(Spec(), ""))->id();
  store_.ScriptCommits({absl::UnavailableError("disk")});
  EXPECT_TRUE(absl::IsUnavailable(book_->Cancel(id).status()));
  EXPECT_EQ((*book_->Get(id))->state(), v1::JOB_STATE_QUEUED);
}

TEST_F(Book, ReturnsTheFirstJobForARepeatedKeyAndRefusesAnotherSpec) {
  const auto first = book_->Submit(Spec(), "key");
  EXPECT_EQ((*book_->Submit(Spec(), "key"))->id(), (*first)->id());
  EXPECT_TRUE(absl::IsAlreadyExists(book_->Submit(Spec(2), "key").status()));
  EXPECT_EQ(book_->List(10).size(), 1u);
}

TEST_F(Book, BoundsTheQueue) {
  options_.max_unfinished = 2;
  Reload();
  ASSERT_TRUE(book_->Submit(Spec(), "").ok());
  ASSERT_TRUE(book_->Submit(Spec(), "").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(book_->Submit(Spec(), "").status()));
}

TEST_F(Book, ForgetsTheOldestFinishedJobsWithTheirCompanions) {
  options_.max_finished = 2;
  options_.companion_prefixes = {"plans/"};
  Reload();
  std::vector<std::string> ids;
  for (int i = 0; i < 4; ++i) {
    ids.push_back((*book_->Submit(Spec(), absl::StrCat("k", i)))->id());
    Transaction plan;
    plan.puts.push_back({"plans/" + ids.back(), "x"});
    ASSERT_TRUE(store_.Commit(plan).ok());
    ASSERT_TRUE(book_->Cancel(ids.back()).ok());
  }
  EXPECT_TRUE(absl::IsNotFound(book_->Get(ids[0]).status()));
  EXPECT_TRUE(absl::IsNotFound(store_.Get("plans/" + ids[1]).status()));
  EXPECT_TRUE(book_->Get(ids[2]).ok());
  EXPECT_EQ(book_->List(10).size(), 2u);
  EXPECT_EQ(store_.List("", 100)->size(), 4u);
}

TEST_F(Book, RefusesAnIllegalMove) {
  const std::string id = (*book_->Submit(Spec(), ""))->id();
  EXPECT_TRUE(absl::IsInternal(Move(id, {v1::JOB_STATE_SUCCEEDED})));
  EXPECT_EQ((*book_->Get(id))->state(), v1::JOB_STATE_QUEUED);
}

TEST_F(Book, RefusesEveryIllegalMoveOneByOneAndChangesNothing) {
  const auto states = [] {
    std::vector<v1::JobState> all;
    for (int i = 0; i < v1::JobState_ARRAYSIZE; ++i) all.push_back(static_cast<v1::JobState>(i));
    return all;
  }();
  int refused = 0;
  for (const v1::JobState from : states) {
    // As a store has it: a job need not have come to this state by legal moves of this version.
    v1::JobRecord record;
    record.set_id("job-1");
    record.set_sequence(1);
    record.set_state(from);
    Transaction put;
    put.puts.push_back({"jobs/job-1", record.SerializeAsString()});
    ASSERT_TRUE(store_.Commit(put).ok());
    for (const v1::JobState to : states) {
      Reload();
      const absl::Status moved = Move("job-1", {to});
      EXPECT_EQ(moved.ok(), from == to || LegalJobMove(from, to))
          << JobStateName(from) << " to " << JobStateName(to) << ": " << moved;
      if (moved.ok()) {
        ASSERT_TRUE(store_.Commit(put).ok());
        continue;
      }
      ++refused;
      EXPECT_TRUE(absl::IsInternal(moved)) << moved;
      for (const std::string& word : {std::string("job-1"), JobStateName(from), JobStateName(to)}) {
        EXPECT_TRUE(absl::StrContains(moved.message(), word)) << moved;
      }
      EXPECT_EQ((*book_->Get("job-1"))->state(), from);
    }
  }
  EXPECT_GT(refused, 100);
}

TEST_F(Book, CancelsInTheQueueAtOnceAndTwice) {
  const std::string id = (*book_->Submit(Spec(), ""))->id();
  EXPECT_EQ((*book_->Cancel(id))->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(book_->Cancel(id).ok());
}

TEST_F(Book, CancelsARunningJobByStoppingIt) {
  const std::string id = (*book_->Submit(Spec(), ""))->id();
  ASSERT_TRUE(
      Move(id, {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING}).ok());
  EXPECT_EQ((*book_->Cancel(id))->state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ((*book_->Get(id))->final_state(), v1::JOB_STATE_CANCELLED);
}

TEST_F(Book, PreemptsWhatHoldsGpusAndNothingElse) {
  const std::string id = (*book_->Submit(Spec(), ""))->id();
  const absl::Status queued = book_->Preempt(id).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(queued)) << queued;
  EXPECT_TRUE(absl::StrContains(queued.message(), "hfctl job cancel")) << queued;
  ASSERT_TRUE(Move(id, {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING,
                        v1::JOB_STATE_CHECKPOINTING})
                  .ok());
  EXPECT_EQ((*book_->Preempt(id))->state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ((*book_->Get(id))->final_state(), v1::JOB_STATE_PREEMPTED);
  EXPECT_TRUE(book_->Preempt(id).ok()) << "twice is once";
  ASSERT_TRUE(Move(id, {v1::JOB_STATE_PREEMPTED}).ok());
  EXPECT_TRUE(book_->Preempt(id).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(book_->Cancel(id).status()));
}

TEST_F(Book, DoesNotCancelWhatHasEndedOtherwise) {
  const std::string id = (*book_->Submit(Spec(), ""))->id();
  ASSERT_TRUE(Move(id, {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING,
                        v1::JOB_STATE_SUCCEEDED})
                  .ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(book_->Cancel(id).status()));
  EXPECT_TRUE(absl::IsNotFound(book_->Cancel("job-none").status()));
}

TEST_F(Book, WatchAnswersOnAChangeAndAfterItsWait) {
  const auto job = *book_->Submit(Spec(), "");
  EXPECT_EQ((*book_->Watch(job->id(), job->version(), absl::Milliseconds(1)))->version(),
            job->version());
  EXPECT_EQ((*book_->Watch(job->id(), 0, absl::Hours(1)))->version(), job->version());
  std::thread canceller([&] { ASSERT_TRUE(book_->Cancel(job->id()).ok()); });
  EXPECT_EQ((*book_->Watch(job->id(), job->version(), absl::Minutes(1)))->state(),
            v1::JOB_STATE_CANCELLED);
  canceller.join();
}

TEST_F(Book, ExplainsWithoutWritingToTheStore) {
  const auto job = *book_->Submit(Spec(), "");
  const int64_t revision = store_.Get("jobs/" + job->id())->mod_revision;
  book_->Explain(job->id(), "waiting_for_gpus", "needs 1 GPU");
  EXPECT_EQ((*book_->Get(job->id()))->message(), "needs 1 GPU");
  EXPECT_GT((*book_->Get(job->id()))->version(), job->version());
  EXPECT_EQ(store_.Get("jobs/" + job->id())->mod_revision, revision);
}

TEST_F(Book, NamesARecordThatItCannotRead) {
  Transaction bad;
  bad.puts.push_back({"jobs/x", "\xff\xff"});
  ASSERT_TRUE(store_.Commit(bad).ok());
  const auto loaded = JobBook::Load(options_, &store_, &clock_);
  EXPECT_TRUE(absl::IsDataLoss(loaded.status()));
  EXPECT_TRUE(absl::StrContains(loaded.status().message(), "jobs/x"));
}

TEST_F(Book, TellsAgesAndNoSecret) {
  const auto job = *book_->Submit(Spec(), "");
  clock_.Advance(absl::Seconds(5));
  const v1::Job shown = ToJob(*job, clock_.Now());
  EXPECT_DOUBLE_EQ(shown.age_s(), 5);
  EXPECT_FALSE(absl::StrContains(shown.SerializeAsString(), job->token()));
}

}  // namespace
}  // namespace hyperframes
