// Engines on leases that an agent owns: mapped by token, survived, revoked, returned. The agent's
// half is the real one, in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/arena/channel_fixture.h"
#include "agent/telemetry/counters_page.h"
#include "client/c/hyperframes.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kLease = kMiB;

// Keeps the counters pages that workers hand over.
class PageKeeper final : public DescriptorServerObserver {
 public:
  void WorkerConnected(const std::string& worker_id, const ProcessIdentity&,
                       UniqueFd counters) override {
    MutexLock lock(&mutex_);
    worker_id_ = worker_id;
    counters_ = std::move(counters);
  }
  void WorkerDisconnected(const std::string&, const ProcessIdentity&) override {}
  int descriptor() {
    MutexLock lock(&mutex_);
    return counters_.get();
  }
  std::string worker_id() {
    MutexLock lock(&mutex_);
    return worker_id_;
  }

 private:
  Mutex mutex_;
  std::string worker_id_ HF_GUARDED_BY(mutex_);
  UniqueFd counters_ HF_GUARDED_BY(mutex_);
};

class LeaseTest : public ChannelTest {
 protected:
  LeaseTest() {
    setenv("HYPERFRAMES_WORKER_ID", "job-0-0", 1);
    const hf_code opened = hf_machine_open(
        R"({"devices": [{"uuid": "SIM-b-0", "total_bytes": "64MiB"}], "host_bytes": 0})",
        &machine_);
    EXPECT_EQ(opened, HF_OK) << hf_last_error();
  }
  ~LeaseTest() override { hf_machine_close(machine_); }

  std::string Lease(const std::string& id, const std::string& token) const {
    return absl::StrCat(R"({"device": "SIM-a-0", "tier": "TIER_PEER", "bytes": )", kLease,
                        R"(, "lease_id": ")", id, R"(", "token": ")", token,
                        R"(", "worker_socket": ")", directory_, R"(/socket"})");
  }
  hf_code Open(const std::string& leases, hf_engine** engine) const {
    return hf_engine_open(
        machine_, absl::StrCat(R"({"verify": true, "leases": [)", leases, "]}").c_str(), engine);
  }

  static uint64_t Put(hf_engine* engine, const std::vector<char>& source) {
    hf_placement placement = {};
    EXPECT_EQ(hf_put(engine, 0, 0, 0, source.data(), static_cast<int64_t>(source.size()),
                     HF_TIER_PEER, "SIM-a-0", -1, nullptr, &placement),
              HF_OK)
        << hf_last_error();
    EXPECT_EQ(placement.tier, HF_TIER_PEER);
    uint64_t released = 0;
    int64_t count = 0;
    EXPECT_EQ(hf_take_releasable(engine, 0, nullptr, &released, 1, &count), HF_OK);
    return placement.handle;
  }
  static std::vector<char> Fetch(hf_engine* engine, uint64_t handle, size_t bytes) {
    std::vector<char> destination(bytes);
    EXPECT_EQ(hf_fetch(engine, handle, destination.data(), 0, nullptr), HF_OK) << hf_last_error();
    EXPECT_EQ(hf_wait(engine, handle, nullptr), HF_OK) << hf_last_error();
    EXPECT_EQ(hf_drop(engine, handle), HF_OK);
    return destination;
  }

  hf_machine* machine_ = nullptr;
};

TEST_F(LeaseTest, BytesGoThroughALeaseAndComeBackAndSoDoesTheLease) {
  const std::string token = agent_->Lend("lease-1", kLease);
  hf_engine* engine = nullptr;
  ASSERT_EQ(Open(Lease("lease-1", token), &engine), HF_OK) << hf_last_error();
  const std::vector<char> source(100000, 'x');
  EXPECT_EQ(Fetch(engine, Put(engine, source), source.size()), source);
  EXPECT_EQ(hf_quiesce(engine), HF_OK);
  EXPECT_EQ(agent_->lent(), kLease);
  hf_engine_close(engine);
  EXPECT_TRUE(Eventually([this] { return agent_->lent() == 0; }));
}

TEST_F(LeaseTest, AWrongTokenIsRefusedAndWhatWasMappedBeforeGoesBack) {
  const std::string token = agent_->Lend("lease-1", kLease);
  agent_->Lend("lease-2", kLease);
  hf_engine* engine = nullptr;
  EXPECT_EQ(Open(Lease("lease-1", token) + "," + Lease("lease-2", std::string(32, '0')), &engine),
            HF_PERMISSION_DENIED);
  EXPECT_EQ(engine, nullptr);
  EXPECT_TRUE(Eventually([this] { return agent_->lent() == kLease; }));
}

TEST_F(LeaseTest, ALeaseThatIsNotThereIsNamed) {
  hf_engine* engine = nullptr;
  EXPECT_EQ(Open(Lease("lease-9", std::string(32, '0')), &engine), HF_NOT_FOUND);
  EXPECT_THAT(std::string(hf_last_error()), HasSubstr("lease-9"));
}

TEST_F(LeaseTest, AnAgentThatIsKilledDisturbsNothing) {
  const std::string token = agent_->Lend("lease-1", kLease);
  hf_engine* engine = nullptr;
  ASSERT_EQ(Open(Lease("lease-1", token), &engine), HF_OK) << hf_last_error();
  const std::vector<char> source(100000, 'y');
  const uint64_t handle = Put(engine, source);
  agent_.reset();
  EXPECT_EQ(Fetch(engine, handle, source.size()), source);
  agent_ = std::make_unique<ArenaOfAgent>(directory_);
  const uint64_t second = Put(engine, source);
  EXPECT_EQ(Fetch(engine, second, source.size()), source);
  EXPECT_TRUE(Eventually([this] { return agent_->lent() == kLease; })) << "not adopted";
  hf_engine_close(engine);
  EXPECT_TRUE(Eventually([this] { return agent_->lent() == 0; }));
}

TEST_F(LeaseTest, ARevocationIsHeardOnceByTheEngine) {
  const std::string token = agent_->Lend("lease-1", kLease);
  hf_engine* engine = nullptr;
  ASSERT_EQ(Open(Lease("lease-1", token), &engine), HF_OK) << hf_last_error();
  ASSERT_TRUE(agent_->table->Revoke("lease-1").ok());
  ASSERT_TRUE(agent_->server->SendRevocation("lease-1"));
  char* asked_back = nullptr;
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(hf_take_revocation(engine, &asked_back), HF_OK);
    return asked_back != nullptr;
  }));
  EXPECT_STREQ(asked_back, "lease-1");
  hf_free(asked_back);
  EXPECT_EQ(hf_take_revocation(engine, &asked_back), HF_OK);
  EXPECT_EQ(asked_back, nullptr);
  hf_engine_close(engine);
  EXPECT_TRUE(Eventually([this] { return agent_->lent() == 0; }));
}

TEST_F(LeaseTest, TheNextEngineOfAProcessUsesTheSameConnection) {
  for (const std::string id : {"lease-1", "lease-2", "lease-3"}) {
    const std::string token = agent_->Lend(id, kLease);
    hf_engine* engine = nullptr;
    ASSERT_EQ(Open(Lease(id, token), &engine), HF_OK) << hf_last_error();
    hf_engine_close(engine);
  }
  EXPECT_EQ(agent_->server->counters().connections_opened, 1);
}

TEST_F(LeaseTest, AnEngineThatOnlyMeasuresDoesNotConnectToTheAgent) {
  setenv("HYPERFRAMES_WORKER_SOCKET", absl::StrCat(directory_, "/socket").c_str(), 1);
  for (const char* options : {R"({"measures_only": true})", "{}"}) {
    hf_engine* engine = nullptr;
    ASSERT_EQ(hf_engine_open(machine_, options, &engine), HF_OK) << hf_last_error();
    const bool measures = options[1] != '}';
    EXPECT_EQ(agent_->server->counters().connections_opened, measures ? 0 : 1);
    hf_engine_close(engine);
  }
  unsetenv("HYPERFRAMES_WORKER_SOCKET");
}

TEST_F(LeaseTest, TheCountersPageIsReadByTheAgentThatGotIt) {
  PageKeeper keeper;
  DescriptorServerOptions options;
  options.socket_path = directory_ + "/other";
  auto server = DescriptorServer::Start(options, agent_->table.get(), &keeper);
  ASSERT_TRUE(server.ok()) << server.status();
  setenv("HYPERFRAMES_WORKER_SOCKET", options.socket_path.c_str(), 1);
  hf_engine* engine = nullptr;
  ASSERT_EQ(Open("", &engine), HF_OK) << hf_last_error();
  unsetenv("HYPERFRAMES_WORKER_SOCKET");
  ASSERT_TRUE(Eventually([&] { return keeper.descriptor() >= 0; }));
  EXPECT_EQ(keeper.worker_id(), "job-0-0");
  void* const page =
      mmap(nullptr, kCountersPageBytes, PROT_READ, MAP_SHARED, keeper.descriptor(), 0);
  ASSERT_NE(page, MAP_FAILED);
  const auto* const counters = static_cast<const CountersPage*>(page);
  EXPECT_EQ(counters->magic.load(), kCountersMagic);
  EXPECT_EQ(hf_report(engine, 41, 1, 2, 3, 4), HF_OK);
  EXPECT_EQ(counters->steps.load(), 41);
  EXPECT_EQ(counters->activation_peak_bytes.load(), 2);
  EXPECT_EQ(hf_report_micro_batches(engine, 3, 9, 10, 11), HF_OK);
  EXPECT_EQ(counters->micro_batches[3].load(), 9);
  EXPECT_EQ(hf_report_micro_batches(engine, 64, 1, 1, 1), HF_INVALID_ARGUMENT);
  munmap(page, kCountersPageBytes);
  hf_engine_close(engine);
}

}  // namespace
}  // namespace hyperframes
