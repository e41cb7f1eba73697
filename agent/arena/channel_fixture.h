// What the tests of the descriptor channel share: an agent's half that can be killed and started
// again, and waiting for a condition with a deadline.
#ifndef HYPERFRAMES_AGENT_ARENA_CHANNEL_FIXTURE_H_
#define HYPERFRAMES_AGENT_ARENA_CHANNEL_FIXTURE_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>

#include "agent/arena/descriptor_client.h"
#include "agent/arena/descriptor_server.h"
#include "agent/arena/lease_records.h"
#include "agent/arena/lease_table.h"
#include "agent/device/host/host_device.h"
#include "common/eventually.h"
#include "common/random_id.h"

namespace hyperframes {

// The arena of one agent, without the agent.
class ArenaOfAgent {
 public:
  explicit ArenaOfAgent(const std::string& directory, Bytes total = kGiB) {
    HostDeviceOptions options;
    options.uuid = "SIM-a-0";
    options.total_bytes = total;
    device = std::move(HostDevice::Create(options).value());
    records = std::move(LeaseRecords::Open(directory + "/leases").value());
    table = std::make_unique<LeaseTable>(std::vector<LendingDevice>{{device.get(), 0}},
                                         MonotonicClock(), records.get());
    table->Restore(records->Load());
    DescriptorServerOptions server_options;
    server_options.socket_path = directory + "/socket";
    server_options.most_connections = 8;
    server_options.tick_interval = absl::Milliseconds(20);
    auto started = DescriptorServer::Start(server_options, table.get(), nullptr);
    EXPECT_TRUE(started.ok()) << started.status();
    server = std::move(*started);
  }

  // A committed lease with a token of its own, which is returned.
  std::string Lend(const std::string& id, Bytes bytes) {
    LeaseRecord wanted;
    wanted.lease_id = id;
    wanted.job_id = "job";
    wanted.token = RandomHex(16);
    wanted.device = "SIM-a-0";
    wanted.bytes = bytes;
    EXPECT_TRUE(table->Prepare(wanted).ok());
    EXPECT_TRUE(table->Commit(id).ok());
    return wanted.token;
  }
  Bytes lent() const { return table->Usage()[0].lent_bytes; }

  std::unique_ptr<HostDevice> device;
  std::unique_ptr<LeaseRecords> records;
  std::unique_ptr<LeaseTable> table;
  std::unique_ptr<DescriptorServer> server;
};

class ChannelTest : public ::testing::Test {
 protected:
  ChannelTest() {
    // In memory where there is such a place, as /run is on a node: what is tested is the channel,
    // and a disk that is busy with something else can take milliseconds for every record.
    char in_memory[] = "/dev/shm/hfchannel.XXXXXX";
    char on_disk[] = "/tmp/hfchannel.XXXXXX";
    const char* const made = mkdtemp(in_memory) != nullptr ? in_memory : mkdtemp(on_disk);
    directory_ = made;
    agent_ = std::make_unique<ArenaOfAgent>(directory_);
  }
  ~ChannelTest() override {
    agent_.reset();
    if (system(("rm -rf " + directory_).c_str()) != 0) ADD_FAILURE() << directory_;
  }

  // As kill -9 does: nothing is told to anybody, the memory of this agent goes.
  void RestartAgent() {
    agent_.reset();
    agent_ = std::make_unique<ArenaOfAgent>(directory_);
  }
  std::unique_ptr<DescriptorClient> Connect() {
    DescriptorClientOptions options;
    options.socket_path = directory_ + "/socket";
    options.worker_id = "job-0-0";
    options.job_id = "job";
    options.reconnect_interval = absl::Milliseconds(10);
    auto client = DescriptorClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return std::move(*client);
  }

  std::string directory_;
  std::unique_ptr<ArenaOfAgent> agent_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_CHANNEL_FIXTURE_H_
