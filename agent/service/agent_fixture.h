// What the tests of the agent share: a node with its service, and a link to a coordinator's
// membership.
#ifndef HYPERFRAMES_AGENT_SERVICE_AGENT_FIXTURE_H_
#define HYPERFRAMES_AGENT_SERVICE_AGENT_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/arena/descriptor_client.h"
#include "agent/device/host/host_machine.h"
#include "agent/service/agent_service.h"
#include "agent/service/coordinator_link.h"
#include "agent/service/fake_membership.h"
#include "agent/service/node.h"
#include "common/eventually.h"
#include "common/random_id.h"

namespace hyperframes {

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() {
    char name[] = "/tmp/hfagent.XXXXXX";
    directory_ = mkdtemp(name);
    StartNode();
  }
  ~AgentTest() override {
    link_.reset();
    if (node_ != nullptr) {
      for (const WorkerInfo& info : node_->supervisor()->Workers()) {
        node_->supervisor()->Stop(info.spec.worker_id, absl::ZeroDuration()).IgnoreError();
        WaitForEnd(info.spec.worker_id);
      }
    }
    service_.reset();
    node_.reset();
    if (system(("rm -rf " + directory_).c_str()) != 0) ADD_FAILURE() << directory_;
  }

  void StartNode() {
    NodeOptions options;
    options.name = "a";
    options.run_directory = directory_;
    options.shim_path = "agent/hfshim";
    options.reserve_bytes = kMiB;
    HostMachineOptions machine = {"a", *ParseHostDevices("2 x 16MiB", "a"), 64 * kMiB};
    auto node = Node::Create(options, *HostMachine::Create(std::move(machine)));
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = std::move(*node);
    service_ = std::make_unique<AgentService>(node_.get(), &fence_, [this] {
      if (link_ != nullptr) link_->NotifyChanged();
    });
  }
  void StopNode() {
    service_.reset();
    node_.reset();
  }
  void Link(int port) {
    CoordinatorLinkOptions options;
    options.coordinator = "127.0.0.1:" + std::to_string(port);
    options.agent_address = "127.0.0.1:1";
    options.report_interval = absl::Milliseconds(50);
    link_ = std::make_unique<CoordinatorLink>(options, node_.get(), &fence_);
  }
  v1::StartWorkerRequest Script(const std::string& script) {
    v1::StartWorkerRequest request;
    request.set_epoch(5);
    request.set_worker_id("job-1-0");
    request.set_job_id("job");
    request.set_world_size(1);
    request.set_local_world_size(1);
    request.set_gpu("SIM-a-1");
    request.set_master_address("127.0.0.1");
    request.set_master_port(1234);
    request.set_job_token("secret");
    request.set_coordinator_address("127.0.0.1:7461");
    for (const std::string& word : {std::string("bash"), std::string("-c"), script}) {
      request.add_command(word);
    }
    return request;
  }
  v1::PrepareLeaseRequest Lease(const std::string& id, Bytes bytes) {
    v1::PrepareLeaseRequest request;
    request.set_epoch(5);
    request.set_lease_id(id);
    request.set_job_id("job");
    request.set_token(RandomHex(16));
    request.set_device("SIM-a-0");
    request.set_tier(v1::TIER_PEER);
    request.set_bytes(bytes);
    return request;
  }
  // Both phases; the token is returned.
  std::string Lend(const std::string& id, Bytes bytes) {
    const v1::PrepareLeaseRequest prepare = Lease(id, bytes);
    v1::LeaseResponse response;
    EXPECT_TRUE(service_->PrepareLease(nullptr, &prepare, &response).ok());
    v1::LeaseRequest commit;
    commit.set_epoch(5);
    commit.set_lease_id(id);
    EXPECT_TRUE(service_->CommitLease(nullptr, &commit, &response).ok());
    EXPECT_EQ(response.lease().state(), v1::LEASE_STATE_COMMITTED);
    return prepare.token();
  }
  WorkerInfo WaitForEnd(const std::string& id) {
    WorkerInfo found;
    EXPECT_TRUE(Eventually([&] {
      for (const WorkerInfo& info : node_->supervisor()->Workers()) {
        if (info.spec.worker_id == id) found = info;
      }
      return found.status.state == WorkerState::kExited;
    }));
    return found;
  }
  std::unique_ptr<DescriptorClient> Borrower(const std::string& worker_id, int counters = -1) {
    DescriptorClientOptions options;
    options.socket_path = node_->worker_socket();
    options.worker_id = worker_id;
    options.counters_descriptor = counters;
    options.reconnect_interval = absl::Milliseconds(10);
    auto client = DescriptorClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return std::move(*client);
  }
  grpc::Status Revoke(const std::string& lease_id, double grace_s, v1::LeaseResponse* response) {
    v1::RevokeLeaseRequest request;
    request.set_epoch(5);
    request.set_lease_id(lease_id);
    request.set_grace_s(grace_s);
    return service_->RevokeLease(nullptr, &request, response);
  }
  Bytes Lent() { return node_->leases()->Usage()[0].lent_bytes; }

  std::string directory_;
  EpochFence fence_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<AgentService> service_;
  std::unique_ptr<CoordinatorLink> link_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_AGENT_FIXTURE_H_
