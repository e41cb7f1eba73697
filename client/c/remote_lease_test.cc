// An engine of the C ABI on a lease of another node: the agent of this node starts its hftransfer,
// the other node's is a real process too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/arena/channel_fixture.h"
#include "agent/transfer/transfer_children.h"
#include "client/c/hyperframes.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kLease = 8 * kMiB;

TransferChildrenOptions Children(const std::string& agent_socket) {
  TransferChildrenOptions options;
  options.program = "agent/hftransfer";
  options.backend = "host";
  options.agent_socket = agent_socket;
  return options;
}

// The half of this node's agent that starts hftransfers.
class Starter final : public DescriptorServerObserver {
 public:
  explicit Starter(TransferChildren* children) : children_(children) {}
  void WorkerConnected(const std::string&, const ProcessIdentity&, UniqueFd) override {}
  void WorkerDisconnected(const std::string&, const ProcessIdentity&) override {}
  absl::StatusOr<UniqueFd> StartTransfer(const std::string&, const std::string& gpu) override {
    return children_->StartNear(gpu);
  }

 private:
  TransferChildren* const children_;
};

class RemoteLeaseTest : public ChannelTest {
 protected:
  RemoteLeaseTest()
      : far_children_(Children(directory_ + "/socket")),
        near_children_(Children("")),
        starter_(&near_children_),
        table_({}, MonotonicClock(), nullptr) {
    table_.Restore({});
    DescriptorServerOptions options;
    options.socket_path = directory_ + "/near";
    server_ = std::move(DescriptorServer::Start(options, &table_, &starter_).value());
    EXPECT_EQ(
        hf_machine_open(
            R"({"devices": [{"uuid": "SIM-near-0", "total_bytes": "64MiB"}], "host_bytes": 0})",
            &machine_),
        HF_OK)
        << hf_last_error();
    address_ = far_children_.FarAddress("SIM-a-0", "lease-1").value();
  }
  ~RemoteLeaseTest() override { hf_machine_close(machine_); }

  hf_code Open(const std::string& token, hf_engine** engine) const {
    return hf_engine_open(
        machine_,
        absl::StrCat(R"({"verify": true, "leases": [{"device": "SIM-a-0", "tier": "TIER_PEER", )",
                     R"("bytes": )", kLease, R"(, "lease_id": "lease-1", "token": ")", token,
                     R"(", "worker_socket": ")", directory_, R"(/near", "node": "a", )",
                     R"("transfer_address": ")", address_, R"("}]})")
            .c_str(),
        engine);
  }
  static hf_placement Put(hf_engine* engine, const std::vector<char>& source) {
    hf_placement placement = {};
    EXPECT_EQ(hf_put(engine, 0, 3, 0, source.data(), static_cast<int64_t>(source.size()),
                     HF_TIER_PEER, "SIM-a-0", -1, nullptr, &placement),
              HF_OK)
        << hf_last_error();
    return placement;
  }

  TransferChildren far_children_;
  TransferChildren near_children_;
  Starter starter_;
  LeaseTable table_;
  std::unique_ptr<DescriptorServer> server_;
  hf_machine* machine_ = nullptr;
  std::string address_;
};

TEST_F(RemoteLeaseTest, BytesGoToTheOtherNodeAndComeBackAndSoDoesTheLease) {
  hf_engine* engine = nullptr;
  ASSERT_EQ(Open(agent_->Lend("lease-1", kLease), &engine), HF_OK) << hf_last_error();
  const std::vector<char> source(3000000, 'x');
  const hf_placement placement = Put(engine, source);
  EXPECT_EQ(placement.tier, HF_TIER_PEER);
  std::vector<char> back(source.size());
  ASSERT_EQ(hf_fetch(engine, placement.handle, back.data(), 0, nullptr), HF_OK);
  ASSERT_EQ(hf_wait(engine, placement.handle, nullptr), HF_OK) << hf_last_error();
  EXPECT_TRUE(back == source);
  EXPECT_EQ(hf_drop(engine, placement.handle), HF_OK);
  hf_engine_close(engine);
  EXPECT_TRUE(Eventually([this] { return agent_->lent() == 0; }));
  EXPECT_TRUE(Eventually([this] {
    near_children_.Tick({});
    return near_children_.near_children() == 0;
  }));
}

TEST_F(RemoteLeaseTest, AWrongTokenIsTheOtherNodesRefusal) {
  agent_->Lend("lease-1", kLease);
  hf_engine* engine = nullptr;
  EXPECT_EQ(Open(std::string(32, '0'), &engine), HF_PERMISSION_DENIED);
  EXPECT_THAT(std::string(hf_last_error()), HasSubstr("node a"));
}

TEST_F(RemoteLeaseTest, ARevocationOfTheOtherNodeIsTakenByTheEngine) {
  hf_engine* engine = nullptr;
  ASSERT_EQ(Open(agent_->Lend("lease-1", kLease), &engine), HF_OK) << hf_last_error();
  ASSERT_TRUE(agent_->table->Revoke("lease-1", absl::Hours(1)).ok());
  ASSERT_TRUE(agent_->server->SendRevocation("lease-1"));
  std::string asked;
  EXPECT_TRUE(Eventually([engine, &asked] {
    char* lease = nullptr;
    EXPECT_EQ(hf_take_revocation(engine, &lease), HF_OK) << hf_last_error();
    asked = lease == nullptr ? "" : lease;
    hf_free(lease);
    return !asked.empty();
  }));
  EXPECT_EQ(asked, "lease-1");
  hf_engine_close(engine);
  EXPECT_TRUE(Eventually([this] { return agent_->lent() == 0; }));
}

TEST_F(RemoteLeaseTest, AnEngineSaysWhichFrameAndNodeWasLost) {
  hf_engine* engine = nullptr;
  ASSERT_EQ(Open(agent_->Lend("lease-1", kLease), &engine), HF_OK) << hf_last_error();
  const std::vector<char> source(3000000, 'x');
  const hf_placement placement = Put(engine, source);
  // The other node takes its memory back while the frame is there.
  far_children_.KillFar("SIM-a-0");
  std::vector<char> back(source.size());
  hf_code code = hf_fetch(engine, placement.handle, back.data(), 0, nullptr);
  if (code == HF_OK) code = hf_wait(engine, placement.handle, nullptr);
  EXPECT_EQ(code, HF_UNAVAILABLE) << hf_last_error();
  EXPECT_THAT(std::string(hf_last_error()), HasSubstr("node a"));
  hf_engine_close(engine);
}

TEST_F(RemoteLeaseTest, AnAddressWithoutItsNodeIsRefused) {
  hf_engine* engine = nullptr;
  EXPECT_EQ(hf_engine_open(machine_,
                           R"({"leases": [{"device": "SIM-a-0", "tier": "peer", "bytes": 512,
                               "transfer_address": "127.0.0.1:1"}]})",
                           &engine),
            HF_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(hf_last_error()), HasSubstr("transfer_address"));
}

}  // namespace
}  // namespace hyperframes
