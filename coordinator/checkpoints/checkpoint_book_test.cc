#include "coordinator/checkpoints/checkpoint_book.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/checkpoints/checkpoint_state.h"
#include "coordinator/store/memory_store.h"

namespace hyperframes {
namespace {

TEST(CheckpointState, AllowsExactlyTheListedMoves) {
  const std::set<std::pair<int, int>> legal = {
      {v1::CHECKPOINT_STATE_OPEN, v1::CHECKPOINT_STATE_PREPARED},
      {v1::CHECKPOINT_STATE_OPEN, v1::CHECKPOINT_STATE_ABORTED},
      {v1::CHECKPOINT_STATE_PREPARED, v1::CHECKPOINT_STATE_COMMITTED},
      {v1::CHECKPOINT_STATE_PREPARED, v1::CHECKPOINT_STATE_ABORTED},
  };
  for (int from = 0; from < v1::CheckpointState_ARRAYSIZE; ++from) {
    for (int to = 0; to < v1::CheckpointState_ARRAYSIZE; ++to) {
      const auto a = static_cast<v1::CheckpointState>(from);
      const auto b = static_cast<v1::CheckpointState>(to);
      EXPECT_EQ(LegalCheckpointMove(a, b), legal.count({from, to}) > 0)
          << CheckpointStateName(a) << " to " << CheckpointStateName(b);
    }
  }
}

TEST(CheckpointState, HasANameAndIsUnderWayOrNot) {
  EXPECT_EQ(CheckpointStateName(v1::CHECKPOINT_STATE_PREPARED), "PREPARED");
  EXPECT_EQ(CheckpointStateName(static_cast<v1::CheckpointState>(99)), "UNKNOWN(99)");
  EXPECT_TRUE(IsUnderWay(v1::CHECKPOINT_STATE_OPEN));
  EXPECT_TRUE(IsUnderWay(v1::CHECKPOINT_STATE_PREPARED));
  EXPECT_FALSE(IsUnderWay(v1::CHECKPOINT_STATE_COMMITTED));
  EXPECT_FALSE(IsUnderWay(v1::CHECKPOINT_STATE_ABORTED));
}

class Book : public testing::Test {
 protected:
  void SetUp() override { Restart(); }
  void Restart() {
    auto loaded = CheckpointBook::Load(options_, &store_, &clock_);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    book_ = std::move(loaded).value();
  }
  absl::StatusOr<CheckpointBook::Record> Add(const std::string& directory, int64_t step) {
    v1::Checkpoint checkpoint;
    checkpoint.set_job_id("job-1");
    checkpoint.set_directory(directory);
    checkpoint.set_name(absl::StrCat("step-", step));
    checkpoint.set_global_step(step);
    checkpoint.set_world_size(2);
    return book_->Add(checkpoint);
  }
  absl::Status Move(const std::string& id, v1::CheckpointState state) {
    return book_
        ->Update(id,
                 [&](v1::Checkpoint* checkpoint) {
                   checkpoint->set_state(state);
                   return absl::OkStatus();
                 })
        .status();
  }
  // Its id.
  std::string Commit(const std::string& directory, int64_t step) {
    const auto added = Add(directory, step);
    EXPECT_TRUE(added.ok()) << added.status();
    const std::string id = (*added)->checkpoint().id();
    EXPECT_TRUE(Move(id, v1::CHECKPOINT_STATE_PREPARED).ok());
    EXPECT_TRUE(Move(id, v1::CHECKPOINT_STATE_COMMITTED).ok());
    return id;
  }
  std::string Abort(const std::string& directory, int64_t step) {
    const std::string id = (*Add(directory, step))->checkpoint().id();
    EXPECT_TRUE(Move(id, v1::CHECKPOINT_STATE_ABORTED).ok());
    return id;
  }
  bool Knows(const std::string& id) { return book_->Get(id).ok(); }
  v1::CheckpointState State(const std::string& id) {
    return (*book_->Get(id))->checkpoint().state();
  }
  std::vector<int64_t> Steps(const CheckpointBook::Filter& filter, size_t limit = 100) {
    std::vector<int64_t> steps;
    for (const auto& record : book_->List(filter, limit)) {
      steps.push_back(record->checkpoint().global_step());
    }
    return steps;
  }

  MemoryStore store_;
  FakeClock clock_{absl::FromUnixSeconds(1800000000)};
  CheckpointBook::Options options_;
  std::unique_ptr<CheckpointBook> book_;
};

TEST_F(Book, RefusesEveryIllegalMoveAndKeepsTheState) {
  const std::vector<std::vector<v1::CheckpointState>> ways = {
      {},
      {v1::CHECKPOINT_STATE_PREPARED},
      {v1::CHECKPOINT_STATE_PREPARED, v1::CHECKPOINT_STATE_COMMITTED},
      {v1::CHECKPOINT_STATE_ABORTED},
  };
  for (size_t i = 0; i < ways.size(); ++i) {
    const std::string id = (*Add(absl::StrCat("/d", i), 1))->checkpoint().id();
    for (const v1::CheckpointState state : ways[i]) ASSERT_TRUE(Move(id, state).ok());
    const v1::CheckpointState at = State(id);
    for (int to = 0; to < v1::CheckpointState_ARRAYSIZE; ++to) {
      const auto wanted = static_cast<v1::CheckpointState>(to);
      if (wanted == at || LegalCheckpointMove(at, wanted)) continue;
      const absl::Status refused = Move(id, wanted);
      EXPECT_TRUE(absl::IsInternal(refused)) << CheckpointStateName(at) << " to " << to;
      EXPECT_EQ(State(id), at);
    }
  }
}

TEST_F(Book, KeepsEverythingThroughARestart) {
  const std::string committed = Commit("/run", 50);
  clock_.Advance(absl::Seconds(3));
  const std::string aborted = Abort("/run", 100);
  const std::string open = (*Add("/run", 150))->checkpoint().id();
  clock_.Advance(absl::Seconds(7));
  Restart();
  EXPECT_EQ(State(committed), v1::CHECKPOINT_STATE_COMMITTED);
  EXPECT_EQ(State(aborted), v1::CHECKPOINT_STATE_ABORTED);
  EXPECT_EQ(State(open), v1::CHECKPOINT_STATE_OPEN);
  EXPECT_EQ(Steps({}), (std::vector<int64_t>{150, 100, 50}));
  EXPECT_EQ(book_->UnderWayIn("/run")->checkpoint().id(), open);
  EXPECT_EQ(ToCheckpoint(**book_->Get(committed), clock_.Now()).age_s(), 10);
  ASSERT_TRUE(Move(open, v1::CHECKPOINT_STATE_ABORTED).ok());
  Commit("/run", 200);
  EXPECT_EQ(Steps({}).front(), 200) << "what comes after a restart is newer";
}

TEST_F(Book, TellsHowLongASaveTook) {
  const std::string id = (*Add("/run", 1))->checkpoint().id();
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(Move(id, v1::CHECKPOINT_STATE_PREPARED).ok());
  EXPECT_EQ(ToCheckpoint(**book_->Get(id), clock_.Now()).save_s(), 0) << "not committed";
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(Move(id, v1::CHECKPOINT_STATE_COMMITTED).ok());
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(ToCheckpoint(**book_->Get(id), clock_.Now()).save_s(), 5);
  EXPECT_EQ(ToCheckpoint(**book_->Get(id), clock_.Now()).age_s(), 3605);
}

TEST_F(Book, HasOneUnderWayInADirectory) {
  const std::string first = (*Add("/run", 1))->checkpoint().id();
  const absl::Status second = Add("/run", 2).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_TRUE(absl::StrContains(second.message(), first)) << second;
  EXPECT_TRUE(Add("/other", 2).ok());
  EXPECT_EQ(book_->UnderWay().size(), 2u);
  ASSERT_TRUE(Move(first, v1::CHECKPOINT_STATE_PREPARED).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Add("/run", 2).status()));
  ASSERT_TRUE(Move(first, v1::CHECKPOINT_STATE_COMMITTED).ok());
  EXPECT_TRUE(Add("/run", 2).ok());
}

TEST_F(Book, ListsNewestFirstByWhatIsAskedFor) {
  Commit("/run", 50);
  Abort("/run", 100);
  Commit("/other", 70);
  EXPECT_EQ(Steps({"", "/run", false}), (std::vector<int64_t>{100, 50}));
  EXPECT_EQ(Steps({"", "/run", true}), (std::vector<int64_t>{50}));
  EXPECT_EQ(Steps({"job-1", "", true}), (std::vector<int64_t>{70, 50}));
  EXPECT_EQ(Steps({"job-2", "", false}), std::vector<int64_t>());
  EXPECT_EQ(Steps({}, 1), (std::vector<int64_t>{70}));
}

TEST_F(Book, ForgetsTheOldestCommittedOfADirectoryAboveItsBound) {
  options_.max_committed_per_directory = 3;
  Restart();
  for (int64_t step = 1; step <= 5; ++step) Commit("/run", step);
  Commit("/other", 9);
  EXPECT_EQ(Steps({}), (std::vector<int64_t>{9, 5, 4, 3}));
  Restart();
  EXPECT_EQ(Steps({}), (std::vector<int64_t>{9, 5, 4, 3})) << "in the store as well";
}

TEST_F(Book, ForgetsTheOldestOfAllButNeverTheNewestOfADirectory) {
  options_.max_committed = 3;
  Restart();
  const std::string lonely = Commit("/lonely", 1);
  for (int64_t step = 2; step <= 6; ++step) Commit("/run", step);
  EXPECT_TRUE(Knows(lonely));
  EXPECT_EQ(Steps({}), (std::vector<int64_t>{6, 5, 1}));
  Commit("/third", 7);
  EXPECT_EQ(Steps({}), (std::vector<int64_t>{7, 6, 1}));
  Commit("/third", 8);
  EXPECT_EQ(Steps({}), (std::vector<int64_t>{8, 6, 1})) << "the newest of three directories";
  const absl::Status fourth = Add("/fourth", 9).status();
  EXPECT_TRUE(absl::IsResourceExhausted(fourth)) << fourth;
  EXPECT_TRUE(Add("/run", 9).ok());
}

TEST_F(Book, CountsWhatIsUnderWayWhenItRefusesANewDirectory) {
  options_.max_committed = 2;
  Restart();
  ASSERT_TRUE(Add("/a", 1).ok());
  ASSERT_TRUE(Add("/b", 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Add("/c", 1).status()))
      << "both may yet be committed, and neither could be forgotten then";
}

TEST_F(Book, KeepsTheLastAbortedOnes) {
  options_.max_aborted = 2;
  Restart();
  Commit("/run", 1);
  for (int64_t step = 2; step <= 5; ++step) Abort("/run", step);
  EXPECT_EQ(Steps({}), (std::vector<int64_t>{5, 4, 1}));
  EXPECT_EQ(book_->CountByState()[v1::CHECKPOINT_STATE_ABORTED], 2);
  Restart();
  EXPECT_EQ(Steps({}), (std::vector<int64_t>{5, 4, 1}));
}

TEST_F(Book, RemovesAllButTheNewestCommittedAndWhatIsUnderWay) {
  const std::string old = Commit("/run", 1);
  const std::string newest = Commit("/run", 2);
  const std::string aborted = Abort("/run", 3);
  const std::string open = (*Add("/run", 4))->checkpoint().id();
  EXPECT_TRUE(absl::IsFailedPrecondition(book_->Remove(newest).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(book_->Remove(open).status()));
  ASSERT_TRUE(Move(open, v1::CHECKPOINT_STATE_PREPARED).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(book_->Remove(open).status()));
  EXPECT_TRUE(book_->Remove(old).ok());
  EXPECT_TRUE(absl::IsNotFound(book_->Remove(old).status())) << "as after a success";
  EXPECT_TRUE(book_->Remove(aborted).ok());
  Restart();
  EXPECT_FALSE(Knows(old));
  EXPECT_TRUE(Knows(newest));
  ASSERT_TRUE(Move(open, v1::CHECKPOINT_STATE_COMMITTED).ok());
  EXPECT_TRUE(book_->Remove(newest).ok()) << "another one is the newest now";
}

TEST_F(Book, ShowsNothingThatTheStoreHasNotTaken) {
  const std::string id = (*Add("/run", 1))->checkpoint().id();
  store_.ScriptCommits({absl::UnavailableError("disk")});
  EXPECT_TRUE(absl::IsUnavailable(Move(id, v1::CHECKPOINT_STATE_PREPARED)));
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_OPEN);
  ASSERT_TRUE(Move(id, v1::CHECKPOINT_STATE_PREPARED).ok());
  store_.ScriptCommits({absl::UnavailableError("disk")});
  EXPECT_TRUE(absl::IsUnavailable(Move(id, v1::CHECKPOINT_STATE_COMMITTED)));
  EXPECT_EQ(State(id), v1::CHECKPOINT_STATE_PREPARED);
  store_.ScriptCommits({absl::UnavailableError("disk")});
  EXPECT_TRUE(absl::IsUnavailable(Add("/other", 1).status()));
  EXPECT_EQ(book_->UnderWayIn("/other"), nullptr);
}

TEST_F(Book, AnswersWatchersWhenTheStateChanges) {
  const std::string id = (*Add("/run", 1))->checkpoint().id();
  const auto now = book_->Watch(id, v1::CHECKPOINT_STATE_UNSPECIFIED, absl::Hours(1));
  ASSERT_TRUE(now.ok());
  EXPECT_EQ((*now)->checkpoint().state(), v1::CHECKPOINT_STATE_OPEN);
  std::thread watcher([&] {
    const auto then = book_->Watch(id, v1::CHECKPOINT_STATE_OPEN, absl::Hours(1));
    ASSERT_TRUE(then.ok());
    EXPECT_EQ((*then)->checkpoint().state(), v1::CHECKPOINT_STATE_ABORTED);
  });
  ASSERT_TRUE(Move(id, v1::CHECKPOINT_STATE_ABORTED).ok());
  watcher.join();
  std::thread late([&] {
    EXPECT_TRUE(
        absl::IsNotFound(book_->Watch(id, v1::CHECKPOINT_STATE_ABORTED, absl::Hours(1)).status()));
  });
  ASSERT_TRUE(book_->Remove(id).ok());
  late.join();
  EXPECT_TRUE(absl::IsNotFound(
      book_->Watch("ckpt-none", v1::CHECKPOINT_STATE_OPEN, absl::Hours(1)).status()));
}

TEST_F(Book, EndsAllWaitsWhenItStops) {
  const std::string id = (*Add("/run", 1))->checkpoint().id();
  std::thread watcher(
      [&] { EXPECT_TRUE(book_->Watch(id, v1::CHECKPOINT_STATE_OPEN, absl::Hours(1)).ok()); });
  book_->Stop();
  watcher.join();
}

TEST_F(Book, NamesARecordThatCannotBeRead) {
  Transaction transaction;
  transaction.puts.push_back({"checkpoints/ckpt-1", "no record"});
  ASSERT_TRUE(store_.Commit(transaction).ok());
  const absl::Status status = CheckpointBook::Load(options_, &store_, &clock_).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "checkpoints/ckpt-1")) << status;
}

TEST_F(Book, NamesAtMostTwentyMissingRanks) {
  v1::Checkpoint checkpoint;
  checkpoint.set_world_size(4);
  checkpoint.add_shards()->set_rank(2);
  EXPECT_EQ(MissingRanks(checkpoint), "0, 1, 3");
  checkpoint.set_world_size(1024);
  EXPECT_TRUE(absl::EndsWith(MissingRanks(checkpoint), "20 and 1003 more"))
      << MissingRanks(checkpoint);
}

}  // namespace
}  // namespace hyperframes
