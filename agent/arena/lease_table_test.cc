#include "agent/arena/lease_table.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "agent/device/host/host_device.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

const char kToken[] = "0123456789abcdef0123456789abcdef";
const char kOtherToken[] = "0123456789abcdef0123456789abcdee";

class LeaseTableTest : public ::testing::Test {
 protected:
  LeaseTableTest() {
    HostDeviceOptions options;
    options.uuid = "SIM-a-0";
    options.total_bytes = 10 * kMiB;
    device_ = std::move(HostDevice::Create(options).value());
    table_ = std::make_unique<LeaseTable>(
        std::vector<LendingDevice>{{device_.get(), /*reserve_bytes=*/2 * kMiB}}, &clock_, nullptr);
  }

  static LeaseRecord Wanted(const std::string& id, Bytes bytes = kMiB) {
    LeaseRecord wanted;
    wanted.lease_id = id;
    wanted.job_id = "job";
    wanted.token = kToken;
    wanted.device = "SIM-a-0";
    wanted.bytes = bytes;
    return wanted;
  }
  // What a predecessor left: mapped by this very process.
  static LeaseRecord Left(const std::string& id, Bytes bytes = kMiB) {
    LeaseRecord record = Wanted(id, bytes);
    record.state = LeaseState::kCommitted;
    record.holder = IdentifyProcess(getpid());
    return record;
  }
  Bytes Lent() const { return table_->Usage()[0].lent_bytes; }
  std::string ReasonOf(const std::string& id) const {
    for (const LeaseRecord& record : table_->Report()) {
      if (record.lease_id == id) return record.release_reason;
    }
    return "unknown";
  }

  FakeClock clock_;
  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<LeaseTable> table_;
};

UniqueFd SealedMemory(Bytes bytes, int seals = F_SEAL_SHRINK | F_SEAL_GROW) {
  UniqueFd memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(memory.get(), bytes), 0);
  EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  return memory;
}

// Asks the table, whenever a record is deleted, what is still lent.
class WatchfulJournal final : public LeaseJournal {
 public:
  absl::Status Save(const LeaseRecord& record) override {
    static_cast<void>(record);
    return absl::OkStatus();
  }
  void Forget(const std::string& lease_id) override {
    static_cast<void>(lease_id);
    lent_at_forget.push_back(table->Usage()[0].lent_bytes);
  }
  LeaseTable* table = nullptr;
  std::vector<Bytes> lent_at_forget;
};

TEST_F(LeaseTableTest, FreesEveryByteOfADeadHolderBeforeItTouchesTheDisk) {
  WatchfulJournal journal;
  LeaseTable table({{device_.get(), /*reserve_bytes=*/0}}, &clock_, &journal);
  journal.table = &table;
  const ProcessIdentity holder = IdentifyProcess(getpid());
  for (const char* id : {"one", "two", "three"}) {
    ASSERT_TRUE(table.Prepare(Wanted(id)).ok());
    ASSERT_TRUE(table.Commit(id).ok());
    ASSERT_TRUE(table.Map(id, kToken, holder).ok());
  }
  EXPECT_EQ(table.ReleaseAllHeld({"one", "two", "three", "unknown"}, holder, "worker_died"), 3);
  EXPECT_EQ(journal.lent_at_forget, std::vector<Bytes>({0, 0, 0}));
}

TEST(LeaseState, AllowsExactlyTheListedMoves) {
  using S = LeaseState;
  const std::vector<std::pair<S, S>> legal = {{S::kPrepared, S::kCommitted},
                                              {S::kPrepared, S::kReleased},
                                              {S::kCommitted, S::kRevoking},
                                              {S::kCommitted, S::kReleased},
                                              {S::kRevoking, S::kReleased}};
  for (S from : {S::kPrepared, S::kCommitted, S::kRevoking, S::kReleased}) {
    for (S to : {S::kPrepared, S::kCommitted, S::kRevoking, S::kReleased}) {
      const bool listed =
          std::find(legal.begin(), legal.end(), std::make_pair(from, to)) != legal.end();
      EXPECT_EQ(IsLegalMove(from, to), listed) << LeaseStateName(from) << " " << LeaseStateName(to);
    }
  }
}

TEST_F(LeaseTableTest, RefusesToCommitWhatIsBeingRevokedAndToRevokeWhatIsOnlyPrepared) {
  ASSERT_TRUE(table_->Prepare(Wanted("a")).ok());
  EXPECT_EQ(table_->Revoke("a").status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(table_->Commit("a").ok());
  ASSERT_TRUE(table_->Map("a", kToken, IdentifyProcess(getpid())).ok());
  ASSERT_TRUE(table_->Revoke("a").ok());
  EXPECT_TRUE(table_->Revoke("a").ok()) << "idempotent";
  EXPECT_EQ(table_->Commit("a").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(LeaseTableTest, TellsWhichRevokedLeasesAreOverdueByTheFirstGrace) {
  for (const char* id : {"early", "late", "endless"}) {
    ASSERT_TRUE(table_->Prepare(Wanted(id)).ok());
    ASSERT_TRUE(table_->Commit(id).ok());
    ASSERT_TRUE(table_->Map(id, kToken, IdentifyProcess(getpid())).ok());
  }
  ASSERT_TRUE(table_->Revoke("early", absl::Seconds(10)).ok());
  ASSERT_TRUE(table_->Revoke("late", absl::Seconds(20)).ok());
  ASSERT_TRUE(table_->Revoke("endless").ok());
  ASSERT_TRUE(table_->Revoke("late", absl::ZeroDuration()).ok());
  clock_.Advance(absl::Seconds(10) - absl::Nanoseconds(1));
  EXPECT_TRUE(table_->Overdue().empty());
  clock_.Advance(absl::Nanoseconds(1));
  ASSERT_EQ(table_->Overdue().size(), 1u);
  EXPECT_EQ(table_->Overdue()[0].lease_id, "early");
  table_->ReleaseHeld("early", IdentifyProcess(getpid()), "worker_died");
  EXPECT_EQ(ReasonOf("early"), "revoked");
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(table_->Overdue().size(), 1u);
  table_->ReleaseHeld("late", IdentifyProcess(getpid()), "returned");
  EXPECT_EQ(ReasonOf("late"), "returned") << "late, but of itself";
}

TEST_F(LeaseTableTest, ARestartGivesARevokedLeasesHolderItsGraceAnew) {
  LeaseRecord left = Left("a");
  left.state = LeaseState::kRevoking;
  left.revoke_grace = absl::Seconds(10);
  table_->Restore({left});
  EXPECT_TRUE(table_->IsRevoking("a"));
  ASSERT_TRUE(table_->Adopt("a", kToken, SealedMemory(kMiB), left.holder).ok());
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(table_->Overdue().empty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(table_->Overdue().size(), 1u);
}

TEST_F(LeaseTableTest, GivesTheSameAnswerToTheSamePrepare) {
  ASSERT_TRUE(table_->Prepare(Wanted("a")).ok());
  ASSERT_TRUE(table_->Prepare(Wanted("a")).ok());
  EXPECT_EQ(Lent(), kMiB);
  EXPECT_EQ(table_->Prepare(Wanted("a", 2 * kMiB)).status().code(),
            absl::StatusCode::kAlreadyExists);
  table_->Release("a", "job_end");
  EXPECT_EQ(table_->Prepare(Wanted("a")).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(LeaseTableTest, NeverLendsTheReserveAndNamesDeviceAskedAndFree) {
  ASSERT_TRUE(table_->Prepare(Wanted("a", 6 * kMiB)).ok());
  const absl::Status refused = table_->Prepare(Wanted("b", 3 * kMiB)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("SIM-a-0: 3MiB asked, 2MiB free"));
  EXPECT_TRUE(table_->Prepare(Wanted("b", 2 * kMiB)).ok());
}

TEST_F(LeaseTableTest, GivesThePreparedBytesBackAfterThirtySecondsAndNotBefore) {
  ASSERT_TRUE(table_->Prepare(Wanted("a")).ok());
  clock_.Advance(absl::Seconds(30) - absl::Milliseconds(1));
  table_->Tick(&ProcessRuns);
  EXPECT_EQ(Lent(), kMiB);
  clock_.Advance(absl::Milliseconds(1));
  table_->Tick(&ProcessRuns);
  EXPECT_EQ(Lent(), 0);
  EXPECT_EQ(device_->free_bytes(), 10 * kMiB);
  EXPECT_EQ(table_->Commit("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf("a"), "timed_out");
}

TEST_F(LeaseTableTest, KeepsACommittedLeaseForEver) {
  ASSERT_TRUE(table_->Prepare(Wanted("a")).ok());
  ASSERT_TRUE(table_->Commit("a").ok());
  clock_.Advance(absl::Hours(100));
  table_->Tick(&ProcessRuns);
  EXPECT_EQ(Lent(), kMiB);
}

TEST_F(LeaseTableTest, GivesAllBytesOfADeadWorkersRankBackAndNobodyElses) {
  for (const char* id : {"a", "b"}) ASSERT_TRUE(table_->Prepare(Wanted(id)).ok());
  LeaseRecord other = Wanted("c");
  other.rank = 1;
  ASSERT_TRUE(table_->Prepare(other).ok());
  EXPECT_EQ(table_->ReleaseRank("job", 0, "worker_died"), 2);
  EXPECT_EQ(Lent(), kMiB);
  EXPECT_EQ(device_->free_bytes(), 9 * kMiB);
}

TEST_F(LeaseTableTest, MapsOnlyWithTheTokenAndOnlyOnceCommitted) {
  const ProcessIdentity self = IdentifyProcess(getpid());
  ASSERT_TRUE(table_->Prepare(Wanted("a")).ok());
  EXPECT_EQ(table_->Map("a", kToken, self).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(table_->Commit("a").ok());
  EXPECT_EQ(table_->Map("a", kOtherToken, self).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(table_->Map("a", "", self).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(table_->Map("a", kToken, self).ok());
}

TEST_F(LeaseTableTest, RefusesUnreadableRequests) {
  for (const char* id : {"", "../a", "a b", ".hidden"}) {
    EXPECT_EQ(table_->Prepare(Wanted(id)).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(table_->Prepare(Wanted("a", 0)).status().code(), absl::StatusCode::kInvalidArgument);
  LeaseRecord no_token = Wanted("a");
  no_token.token = "secret";
  EXPECT_EQ(table_->Prepare(no_token).status().code(), absl::StatusCode::kInvalidArgument);
  LeaseRecord elsewhere = Wanted("a");
  elsewhere.device = "SIM-b-0";
  EXPECT_EQ(table_->Prepare(elsewhere).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LeaseTableTest, LendsNothingOnADeviceUntilItsLivingWorkersHaveReported) {
  table_->Restore({Left("old")});
  const absl::Status refused = table_->Prepare(Wanted("new")).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has not handed back lease old"));
  const ProcessIdentity self = IdentifyProcess(getpid());
  EXPECT_TRUE(table_->Adopt("old", kToken, SealedMemory(kMiB), self).ok());
  EXPECT_TRUE(table_->Prepare(Wanted("new")).ok());
  EXPECT_EQ(Lent(), 2 * kMiB);
}

TEST_F(LeaseTableTest, AdoptsNothingOfAnotherSizeTokenOrProcessNorUnsealed) {
  table_->Restore({Left("old")});
  const ProcessIdentity self = IdentifyProcess(getpid());
  const ProcessIdentity parent = IdentifyProcess(getppid());
  EXPECT_EQ(table_->Adopt("old", kToken, SealedMemory(2 * kMiB), self).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table_->Adopt("old", kToken, SealedMemory(kMiB, 0), self).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table_->Adopt("old", kOtherToken, SealedMemory(kMiB), self).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(table_->Adopt("old", kToken, SealedMemory(kMiB), parent).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(table_->Adopt("unknown", kToken, SealedMemory(kMiB), self).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(LeaseTableTest, FreesAnAwaitedLeaseWhenItsProcessEndsOrTenSecondsPass) {
  table_->Restore({Left("old"), Left("older")});
  table_->Tick([](const ProcessIdentity&) { return true; });
  EXPECT_EQ(Lent(), 2 * kMiB);
  clock_.Advance(absl::Seconds(10));
  table_->Tick([](const ProcessIdentity&) { return true; });
  EXPECT_EQ(Lent(), 0);
  EXPECT_EQ(ReasonOf("old"), "not_reported");

  table_->Restore({Left("dead")});
  table_->Tick([](const ProcessIdentity&) { return false; });
  EXPECT_EQ(Lent(), 0);
  EXPECT_EQ(ReasonOf("dead"), "worker_died");
}

TEST_F(LeaseTableTest, GivesFreshMemoryToALeaseThatNobodyEverMapped) {
  LeaseRecord unmapped = Wanted("old");
  unmapped.state = LeaseState::kCommitted;
  table_->Restore({unmapped});
  EXPECT_TRUE(table_->Map("old", kToken, IdentifyProcess(getpid())).ok());
  EXPECT_TRUE(table_->Prepare(Wanted("new")).ok());
}

TEST_F(LeaseTableTest, TellsAReleaseUntilItIsAcknowledged) {
  ASSERT_TRUE(table_->Prepare(Wanted("a")).ok());
  table_->Release("a", "a reason that nobody listed");
  const std::vector<LeaseRecord> report = table_->Report();
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].release_reason, "other") << "reasons are a label: the set is bounded";
  EXPECT_EQ(report[0].token, "") << "tokens are never reported";
  table_->AcknowledgeReleased(report);
  EXPECT_TRUE(table_->Report().empty());
}

}  // namespace
}  // namespace hyperframes
