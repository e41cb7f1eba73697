// A lease is asked back: from a borrower that returns it, and from one that does not.
#include <gtest/gtest.h>

#include <string>

#include "agent/service/agent_fixture.h"

namespace hyperframes {
namespace {

TEST_F(AgentTest, GetsARevokedLeaseBackFromABorrowerThatReturnsIt) {
  const std::string token = Lend("lease", kMiB);
  auto client = Borrower("job-1-0");
  UniqueFd memory(client->MapLease("lease", token)->descriptor);
  v1::LeaseResponse response;
  ASSERT_TRUE(Revoke("lease", /*grace_s=*/600, &response).ok());
  EXPECT_EQ(response.lease().state(), v1::LEASE_STATE_REVOKING);
  EXPECT_EQ(Lent(), kMiB) << "the bytes are the borrower's until it has returned them";
  ASSERT_TRUE(Revoke("lease", /*grace_s=*/0, &response).ok()) << "idempotent";
  std::string asked;
  ASSERT_TRUE(Eventually([&] { return client->TakeRevocation(&asked); }));
  EXPECT_EQ(asked, "lease");
  memory.reset();
  ASSERT_TRUE(client->ReturnLease("lease").ok());
  EXPECT_EQ(Lent(), 0);
  EXPECT_EQ(Revoke("lease", 1, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(node_->leases()->released_by_reason()["returned"], 1);
}

TEST_F(AgentTest, EndsAWorkerThatKeepsARevokedLeaseBeyondTheDeadlineAndSaysWhy) {
  const auto request = Script("sleep 600");
  v1::StartWorkerResponse started;
  ASSERT_TRUE(service_->StartWorker(nullptr, &request, &started).ok());
  const std::string token = Lend("lease", kMiB);
  // Stands for the worker's own library, which would hold the lease in the worker's process.
  auto client = Borrower("job-1-0");
  UniqueFd memory(client->MapLease("lease", token)->descriptor);
  v1::LeaseResponse response;
  ASSERT_TRUE(Revoke("lease", /*grace_s=*/0.05, &response).ok());
  const WorkerInfo ended = WaitForEnd("job-1-0");
  EXPECT_NE(ended.status.term_signal, 0);
  EXPECT_EQ(ended.status.message, "revoked_lease_not_returned: lease");
  EXPECT_EQ(Lent(), 0);
  EXPECT_EQ(node_->leases()->released_by_reason()["revoked"], 1);
}

TEST_F(AgentTest, ARevocationOutlivesTheAgentThatSentIt) {
  const std::string token = Lend("lease", kMiB);
  auto client = Borrower("job-1-0");
  UniqueFd memory(client->MapLease("lease", token)->descriptor);
  // Killed between its record and its message.
  ASSERT_TRUE(node_->leases()->Revoke("lease", absl::Hours(1)).ok());
  StopNode();
  StartNode();
  std::string asked;
  EXPECT_TRUE(Eventually([&] { return client->TakeRevocation(&asked); }));
  EXPECT_EQ(asked, "lease");
  EXPECT_EQ(Lent(), kMiB);
}

TEST_F(AgentTest, ARevokedLeaseThatNobodyMappedIsBackAtOnce) {
  v1::LeaseResponse response;
  const v1::PrepareLeaseRequest prepare = Lease("prepared", kMiB);
  ASSERT_TRUE(service_->PrepareLease(nullptr, &prepare, &response).ok());
  EXPECT_EQ(Revoke("prepared", 1, &response).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  Lend("lease", kMiB);
  EXPECT_EQ(Revoke("lease", -1, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_TRUE(Revoke("lease", 600, &response).ok());
  EXPECT_EQ(response.lease().state(), v1::LEASE_STATE_RELEASED);
  EXPECT_EQ(response.lease().release_reason(), "revoked");
  EXPECT_EQ(Lent(), kMiB) << "the prepared one alone";
}

}  // namespace
}  // namespace hyperframes
