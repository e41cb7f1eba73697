// A lease for a rank on another node: its agent starts the hftransfer that serves it, the rank's
// agent the one that uses it, and both end when they are no longer needed.
#include <cstring>
#include <vector>

#include "agent/device/host/host_device.h"
#include "agent/service/agent_fixture.h"
#include "agent/transfer/transfer_channel.h"

namespace hyperframes {
namespace {

class TransferLeaseTest : public AgentTest {
 protected:
  TransferLeaseTest() {
    HostDeviceOptions options;
    options.uuid = "SIM-b-0";
    options.total_bytes = 64 * kMiB;
    device_ = std::move(HostDevice::Create(options).value());
  }

  // Both phases, for a rank on node b.
  RemoteLease LendToOtherNode(const std::string& id) {
    v1::PrepareLeaseRequest prepare = Lease(id, 4 * kMiB);
    prepare.set_holder_node("b");
    v1::LeaseResponse response;
    const grpc::Status prepared = service_->PrepareLease(nullptr, &prepare, &response);
    EXPECT_TRUE(prepared.ok()) << prepared.error_message();
    RemoteLease lease;
    lease.lease_id = id;
    lease.token = prepare.token();
    lease.node = "a";
    lease.address = response.transfer_address();
    lease.bytes = 4 * kMiB;
    lease.staging_bytes = kMiB;
    v1::LeaseRequest commit;
    commit.set_epoch(5);
    commit.set_lease_id(id);
    EXPECT_TRUE(service_->CommitLease(nullptr, &commit, &response).ok());
    return lease;
  }

  std::unique_ptr<HostDevice> device_;
};

// Copies a piece to the other node and back again.
void ExpectBytesComeBack(Memory* memory) {
  std::vector<char> source(kMiB, 's');
  std::vector<char> back(source.size());
  const auto out = memory->CreateStream(Direction::kOut).value();
  const auto in = memory->CreateStream(Direction::kIn).value();
  ASSERT_TRUE(out->Copy(memory->data(), source.data(), kMiB).ok());
  ASSERT_TRUE(in->WaitFor(out->Record()).ok());
  ASSERT_TRUE(in->Copy(back.data(), memory->data(), kMiB).ok());
  const auto reloaded = in->Record();
  EXPECT_TRUE(reloaded->Arrived().ok());
  reloaded->Synchronize();
  EXPECT_TRUE(back == source);
}

TEST_F(TransferLeaseTest, ALeaseOfThisNodesOwnRanksNeedsNoTransfer) {
  v1::PrepareLeaseRequest prepare = Lease("lease-1", kMiB);
  prepare.set_holder_node("a");
  v1::LeaseResponse response;
  ASSERT_TRUE(service_->PrepareLease(nullptr, &prepare, &response).ok());
  EXPECT_EQ(response.transfer_address(), "");
  EXPECT_EQ(node_->transfers()->far_children(), 0);
}

TEST_F(TransferLeaseTest, FramesGoThroughHftransfersThatEndWithTheLease) {
  const RemoteLease lease = LendToOtherNode("lease-1");
  ASSERT_NE(lease.address, "");
  EXPECT_EQ(LendToOtherNode("lease-2").address, lease.address) << "one for each device";
  EXPECT_EQ(node_->transfers()->far_children(), 1);

  // The rank's side; here its agent is the same one.
  const auto worker = Borrower("job-1-0");
  absl::StatusOr<UniqueFd> socket = worker->StartTransfer("SIM-b-0");
  ASSERT_TRUE(socket.ok()) << socket.status();
  auto channel = TransferChannel::Adopt(*std::move(socket));
  auto memory = channel->Open(device_.get(), lease);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(node_->transfers()->near_children(), 1);
  std::vector<char> source(3 * kMiB, 's');
  std::vector<char> back(source.size());
  {
    const auto out = (*memory)->CreateStream(Direction::kOut).value();
    const auto in = (*memory)->CreateStream(Direction::kIn).value();
    ASSERT_TRUE(out->Copy((*memory)->data(), source.data(), 3 * kMiB).ok());
    const auto stored = out->Record();
    ASSERT_TRUE(in->WaitFor(stored).ok());
    ASSERT_TRUE(in->Copy(back.data(), (*memory)->data(), 3 * kMiB).ok());
    const auto reloaded = in->Record();
    EXPECT_TRUE(reloaded->Arrived().ok());
    reloaded->Synchronize();
  }
  EXPECT_TRUE(back == source);

  memory->reset();
  channel.reset();
  v1::LeaseRequest release;
  release.set_epoch(5);
  release.set_lease_id("lease-2");
  v1::LeaseResponse released;
  ASSERT_TRUE(service_->ReleaseLease(nullptr, &release, &released).ok());
  EXPECT_TRUE(Eventually([&] {
    node_->Housekeep();
    return Lent() == 0 && node_->transfers()->far_children() == 0 &&
           node_->transfers()->near_children() == 0;
  }));
}

TEST_F(TransferLeaseTest, AnAgentThatStopsLeavesARunningTransferAlone) {
  const RemoteLease lease = LendToOtherNode("lease-1");
  auto channel = TransferChannel::Adopt(Borrower("job-1-0")->StartTransfer("SIM-b-0").value());
  auto memory = channel->Open(device_.get(), lease).value();
  StopNode();
  ExpectBytesComeBack(memory.get());
}

TEST_F(TransferLeaseTest, ARevocationReachesTheRankOnTheOtherNodeAndTheLeaseDrains) {
  const RemoteLease lease = LendToOtherNode("lease-1");
  auto channel = TransferChannel::Adopt(Borrower("job-1-0")->StartTransfer("SIM-b-0").value());
  auto memory = channel->Open(device_.get(), lease).value();
  std::string asked;
  EXPECT_FALSE(channel->TakeRevocation(&asked));
  v1::LeaseResponse response;
  ASSERT_TRUE(Revoke("lease-1", /*grace_s=*/600, &response).ok());
  EXPECT_EQ(response.lease().state(), v1::LEASE_STATE_REVOKING);
  ASSERT_TRUE(Eventually([&] { return channel->TakeRevocation(&asked); }));
  EXPECT_EQ(asked, "lease-1");
  EXPECT_FALSE(channel->TakeRevocation(&asked)) << "it is asked for once";
  // The frames there are still the rank's, until it has returned them.
  ExpectBytesComeBack(memory.get());
  memory.reset();
  EXPECT_TRUE(Eventually([&] { return Lent() == 0; }));
  EXPECT_EQ(node_->leases()->released_by_reason()["returned"], 1);
}

TEST_F(TransferLeaseTest, ALeaseThatIsKeptBeyondItsDeadlineIsTakenWithoutTheOthers) {
  const RemoteLease kept = LendToOtherNode("kept");
  const RemoteLease other = LendToOtherNode("other");
  auto channel = TransferChannel::Adopt(Borrower("job-1-0")->StartTransfer("SIM-b-0").value());
  auto kept_memory = channel->Open(device_.get(), kept).value();
  auto other_memory = channel->Open(device_.get(), other).value();
  const auto lost = kept_memory->CreateStream(Direction::kOut).value();
  v1::LeaseResponse response;
  ASSERT_TRUE(Revoke("kept", /*grace_s=*/0.05, &response).ok());
  std::vector<char> source(kMiB, 's');
  absl::Status status;
  EXPECT_TRUE(Eventually([&] {
    status = lost->Copy(kept_memory->data(), source.data(), 512);
    return !status.ok();
  }));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(std::string(status.message()).find("asked back and not returned"), std::string::npos)
      << status;
  EXPECT_TRUE(Eventually([&] { return Lent() == 4 * kMiB; })) << "the other one";
  const auto out = other_memory->CreateStream(Direction::kOut).value();
  ASSERT_TRUE(out->Copy(other_memory->data(), source.data(), kMiB).ok());
  const auto stored = out->Record();
  EXPECT_TRUE(stored->Arrived().ok()) << "the same hftransfer serves it still";
  stored->Synchronize();
}

TEST_F(TransferLeaseTest, AnAgentWithoutTheProgramSaysSoAndKeepsNoLease) {
  TransferChildrenOptions options;
  options.program = "/nowhere/hftransfer";
  TransferChildren children(options);
  const auto address = children.FarAddress("SIM-a-0", "lease-1");
  EXPECT_EQ(address.status().code(), absl::StatusCode::kUnavailable) << address.status();
  EXPECT_NE(std::string(address.status().message()).find("/nowhere/hftransfer"), std::string::npos);
}

}  // namespace
}  // namespace hyperframes
