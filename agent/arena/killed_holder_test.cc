// A process that has mapped 1,000 leases is killed, again and again (docs/cases.md C6).
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "agent/arena/channel_fixture.h"

namespace hyperframes {
namespace {

constexpr int kLeases = 1000;
constexpr int kKills = 20;
constexpr Bytes kLeaseBytes = 4096;

// Maps every lease, says so through `ready`, and waits to be killed.
[[noreturn]] void HoldEverything(const std::string& socket, const std::vector<std::string>& tokens,
                                 int ready) {
  DescriptorClientOptions options;
  options.socket_path = socket;
  auto client = DescriptorClient::Connect(options);
  if (!client.ok()) _exit(1);
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto lease = (*client)->MapLease("lease-" + std::to_string(i), tokens[i]);
    if (!lease.ok()) _exit(2);
    void* memory =
        mmap(nullptr, lease->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, lease->descriptor, 0);
    if (memory == MAP_FAILED) _exit(3);
    close(lease->descriptor);
    *static_cast<char*>(memory) = 1;
  }
  if (write(ready, "r", 1) != 1) _exit(4);
  while (true) pause();
}

TEST_F(ChannelTest, AKilledHolderOfAThousandLeasesGivesEveryByteBackWithinTwoSeconds) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "ThreadSanitizer ends a forked child that starts a thread, as the holder does; the "
         "channel's own threads run under it in descriptor_channel_test";
#endif
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    std::vector<std::string> tokens;
    for (int i = 0; i < kLeases; ++i) {
      tokens.push_back(agent_->Lend("lease-" + std::to_string(i), kLeaseBytes));
    }
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) HoldEverything(directory_ + "/socket", tokens, ready[1]);
    close(ready[1]);
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the child could not map everything";
    close(ready[0]);
    ASSERT_EQ(agent_->lent(), kLeases * kLeaseBytes);

    ASSERT_EQ(kill(child, SIGKILL), 0);
    EXPECT_TRUE(Eventually([&] { return agent_->lent() == 0; }, absl::Seconds(2)));
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(agent_->device->free_bytes(), kGiB) << "the device itself has every byte again";
    EXPECT_EQ(agent_->table->live_leases(), 0);
    EXPECT_TRUE(Eventually([&] { return agent_->records->Load().empty(); }, absl::Seconds(30)))
        << "records follow the bytes at the disk's own speed";
    const auto counters = agent_->server->counters();
    EXPECT_EQ(counters.mappings_opened, (kill_number + 1) * kLeases);
    EXPECT_EQ(counters.mappings_closed, counters.mappings_opened);
    EXPECT_TRUE(Eventually([&] {
      return agent_->server->counters().connections_closed ==
             agent_->server->counters().connections_opened;
    }));
    // The next round uses the same ids, as a coordinator never would: forget the old ones.
    agent_->table->AcknowledgeReleased(agent_->table->Report());
  }
  EXPECT_EQ(agent_->table->released_by_reason().at("worker_died"), kKills * kLeases);
}

}  // namespace
}  // namespace hyperframes
