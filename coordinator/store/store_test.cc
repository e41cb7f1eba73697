// One suite for every implementation, then what only SQLite and leadership promise.
#include "coordinator/store/store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/directory_lock.h"
#include "coordinator/store/leader_store.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/store/sqlite_store.h"

namespace hyperframes {
namespace {

std::string NewDirectory() {
  std::string name = "/tmp/hyperframes_store_XXXXXX";
  EXPECT_NE(mkdtemp(&name[0]), nullptr);
  return name;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Transaction Put(const std::string& key, const std::string& value) {
  Transaction transaction;
  transaction.puts.push_back({key, value});
  return transaction;
}

class StoreConformance : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "memory") {
      store_ = std::make_unique<MemoryStore>();
    } else {
      auto opened = SqliteStore::Open(NewDirectory());
      ASSERT_TRUE(opened.ok()) << opened.status();
      store_ = std::move(opened).value();
    }
  }
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Store, StoreConformance, testing::Values("memory", "sqlite"));

TEST_P(StoreConformance, ReturnsWhatWasPutWithTheRevisionOfItsCommit) {
  const std::string binary("a\0\xff", 3);
  const auto first = store_->Commit(Put("k", binary));
  ASSERT_TRUE(first.ok()) << first.status();
  const auto entry = store_->Get("k");
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(entry->value, binary);
  EXPECT_EQ(entry->mod_revision, *first);
  const auto second = store_->Commit(Put("k", ""));
  ASSERT_TRUE(second.ok());
  EXPECT_GT(*second, *first);
  EXPECT_EQ(store_->Get("k")->value, "");
}

TEST_P(StoreConformance, AnswersNotFoundForAnAbsentKey) {
  EXPECT_TRUE(absl::IsNotFound(store_->Get("none").status()));
}

TEST_P(StoreConformance, ListsAPrefixInOrderUpToTheLimit) {
  for (const char* key : {"b/2", "a/9", "b/1", "b0", "b/3"}) {
    ASSERT_TRUE(store_->Commit(Put(key, key)).ok());
  }
  const auto listed = store_->List("b/", 2);
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->size(), 2u);
  EXPECT_EQ((*listed)[0].key, "b/1");
  EXPECT_EQ((*listed)[1].value, "b/2");
  EXPECT_EQ(store_->List("b/", 10)->size(), 3u);
  EXPECT_EQ(store_->List("", 10)->size(), 5u);
  EXPECT_TRUE(store_->List("c", 10)->empty());
}

TEST_P(StoreConformance, ChangesNothingWhenOneCompareFails) {
  const int64_t revision = *store_->Commit(Put("a", "1"));
  Transaction transaction = Put("b", "2");
  transaction.deletes.push_back("a");
  transaction.compares.push_back({"a", revision});
  transaction.compares.push_back({"c", 5});
  const auto refused = store_->Commit(transaction);
  EXPECT_TRUE(absl::IsAborted(refused.status()));
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "'c'"));
  EXPECT_TRUE(store_->Get("a").ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Get("b").status()));
}

TEST_P(StoreConformance, ComparesAbsenceWithRevisionZero) {
  Transaction create = Put("a", "1");
  create.compares.push_back({"a", 0});
  EXPECT_TRUE(store_->Commit(create).ok());
  EXPECT_TRUE(absl::IsAborted(store_->Commit(create).status()));
}

TEST_P(StoreConformance, RefusesWhatItCannotMean) {
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(Put("", "1")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(Put(std::string(600, 'k'), "")).status()));
  Transaction twice = Put("a", "1");
  twice.deletes.push_back("a");
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(twice).status()));
  Transaction many;
  for (size_t i = 0; i <= kStoreMaxOperations; ++i) many.deletes.push_back(absl::StrCat(i));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(many).status()));
}

TEST_P(StoreConformance, LetsOneOfManyConcurrentWritersWin) {
  std::vector<std::thread> threads;
  std::atomic<int> wins{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      Transaction create = Put("once", "x");
      create.compares.push_back({"once", 0});
      if (store_->Commit(create).ok()) ++wins;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wins, 1);
}

TEST(SqliteStore, KeepsEntriesAndRevisionsAcrossAReopen) {
  const std::string directory = NewDirectory();
  int64_t revision;
  {
    auto store = SqliteStore::Open(directory);
    ASSERT_TRUE(store.ok()) << store.status();
    revision = *(*store)->Commit(Put("a", "1"));
  }
  auto store = SqliteStore::Open(directory);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->Get("a")->mod_revision, revision);
  EXPECT_GT(*(*store)->Commit(Put("b", "1")), revision);
}

TEST(SqliteStore, RefusesASecondOwnerAndNamesTheFirst) {
  const std::string directory = NewDirectory();
  auto first = SqliteStore::Open(directory);
  ASSERT_TRUE(first.ok());
  const auto second = SqliteStore::Open(directory);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_TRUE(absl::StrContains(second.status().message(), absl::StrCat("process ", getpid())))
      << second.status();
  EXPECT_TRUE(absl::StrContains(second.status().message(), directory));
}

TEST(SqliteStore, LeavesAFileThatIsNoDatabaseAlone) {
  const std::string directory = NewDirectory();
  const std::string path = directory + "/state.sqlite";
  const std::string content(5000, 'x');
  std::ofstream(path, std::ios::binary) << content;
  const auto store = SqliteStore::Open(directory);
  EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
  EXPECT_TRUE(absl::StrContains(store.status().message(), path));
  EXPECT_EQ(ReadFile(path), content);
}

TEST(SqliteStore, RefusesADamagedDatabaseAndLeavesItAlone) {
  const std::string directory = NewDirectory();
  const std::string path = directory + "/state.sqlite";
  {
    auto store = SqliteStore::Open(directory);
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE((*store)->Commit(Put(absl::StrCat("key", i), std::string(500, 'v'))).ok());
    }
  }
  std::string content = ReadFile(path);
  ASSERT_GT(content.size(), 20000u);
  for (size_t i = 8192; i < 16384; ++i) content[i] = static_cast<char>(0xa5);
  std::ofstream(path, std::ios::binary) << content;
  const auto store = SqliteStore::Open(directory);
  EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
  EXPECT_EQ(ReadFile(path), content);
}

TEST(SqliteStore, RefusesAnotherSchemaVersionByNumber) {
  const std::string directory = NewDirectory();
  { ASSERT_TRUE(SqliteStore::Open(directory).ok()); }
  sqlite3* database;
  ASSERT_EQ(sqlite3_open((directory + "/state.sqlite").c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "PRAGMA user_version=7", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const auto store = SqliteStore::Open(directory);
  EXPECT_TRUE(absl::IsFailedPrecondition(store.status())) << store.status();
  EXPECT_TRUE(absl::StrContains(store.status().message(), "version 7"));
}

TEST(SqliteStore, RefusesADirectoryThatCannotBeMade) {
  EXPECT_TRUE(absl::IsInvalidArgument(SqliteStore::Open("/nonexistent/a/b").status()));
}

TEST(SqliteStore, LosesNoAcknowledgedWriteWhenKilled) {
  const std::string directory = NewDirectory();
  for (int round = 0; round < 5; ++round) {
    int acknowledged[2];
    ASSERT_EQ(pipe(acknowledged), 0);
    const pid_t child = fork();
    if (child == 0) {
      auto store = SqliteStore::Open(directory);
      for (int i = 0; store.ok(); ++i) {
        if (!(*store)->Commit(Put(absl::StrCat("r", round, "/", i), "v")).ok()) break;
        if (write(acknowledged[1], &i, sizeof(i)) != sizeof(i)) break;
      }
      _exit(1);
    }
    close(acknowledged[1]);
    int last = -1;
    for (int reads = 0; reads < 10 + 7 * round; ++reads) {
      ASSERT_EQ(read(acknowledged[0], &last, sizeof(last)), static_cast<ssize_t>(sizeof(last)));
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    int more;
    while (read(acknowledged[0], &more, sizeof(more)) == sizeof(more)) last = more;
    close(acknowledged[0]);
    auto store = SqliteStore::Open(directory);
    ASSERT_TRUE(store.ok()) << store.status();
    for (int i = 0; i <= last; ++i) {
      EXPECT_TRUE((*store)->Get(absl::StrCat("r", round, "/", i)).ok()) << i << " of " << last;
    }
  }
}

TEST(SqliteStore, ReportsHowLongEachCommitTook) {
  int commits = 0;
  SqliteStore::Options options;
  options.on_commit = [&](absl::Duration) { ++commits; };
  auto store = SqliteStore::Open(NewDirectory(), options);
  ASSERT_TRUE((*store)->Commit(Put("a", "1")).ok());
  EXPECT_EQ(commits, 1);
}

TEST(DirectoryLock, KnowsNetworkFilesystemsByName) {
  EXPECT_EQ(NetworkFilesystemName(0x6969), "nfs");
  EXPECT_EQ(NetworkFilesystemName(static_cast<long>(0xFF534D42)), "cifs");
  EXPECT_EQ(NetworkFilesystemName(0xEF53), "");  // ext4.
}

TEST(LeaderStore, RaisesTheEpochOnEveryStart) {
  MemoryStore store;
  EXPECT_EQ((*LeaderStore::TakeLeadership(&store))->epoch(), 1);
  EXPECT_EQ((*LeaderStore::TakeLeadership(&store))->epoch(), 2);
}

TEST(LeaderStore, RefusesTheWritesOfAnOldLeader) {
  MemoryStore store;
  auto old_leader = *LeaderStore::TakeLeadership(&store);
  ASSERT_TRUE(old_leader->Commit(Put("a", "1")).ok());
  auto new_leader = *LeaderStore::TakeLeadership(&store);
  const auto refused = old_leader->Commit(Put("a", "2"));
  EXPECT_TRUE(absl::IsAborted(refused.status()));
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "leadership lost"));
  EXPECT_EQ(store.Get("a")->value, "1");
  EXPECT_TRUE(new_leader->Commit(Put("a", "3")).ok());
}

TEST(LeaderStore, RefusesAnEpochThatIsNoNumber) {
  MemoryStore store;
  ASSERT_TRUE(store.Commit(Put("leader/epoch", "many")).ok());
  EXPECT_TRUE(absl::IsDataLoss(LeaderStore::TakeLeadership(&store).status()));
}

}  // namespace
}  // namespace hyperframes
