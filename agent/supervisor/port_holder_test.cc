#include "agent/supervisor/port_holder.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <set>

namespace hyperframes {
namespace {

int Nobody(const std::string&) { return 0; }
int One(const std::string&) { return 1; }

TEST(PortHolder, GivesEveryJobAPortOfItsOwnAndTheSameOneAgain) {
  FakeClock clock;
  PortHolder holder(&clock);
  std::set<int> ports;
  for (int job = 0; job < 200; ++job) {
    const auto port = holder.Reserve("job-" + std::to_string(job));
    ASSERT_TRUE(port.ok()) << port.status();
    EXPECT_TRUE(ports.insert(*port).second) << *port << " was given twice";
    EXPECT_EQ(*holder.Reserve("job-" + std::to_string(job)), *port);
  }
}

TEST(PortHolder, LetsAWorkerListenOnTheHeldPortAndNobodyWithoutReuse) {
  FakeClock clock;
  PortHolder holder(&clock);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(*holder.Reserve("job"));
  for (const uint32_t host : {INADDR_LOOPBACK, INADDR_ANY}) {
    address.sin_addr.s_addr = htonl(host);
    UniqueFd stranger(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_NE(bind(stranger.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    UniqueFd worker(socket(AF_INET, SOCK_STREAM, 0));
    const int on = 1;
    ASSERT_EQ(setsockopt(worker.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    EXPECT_EQ(bind(worker.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(worker.get(), 8), 0);
  }
}

TEST(PortHolder, KeepsAPortUntilTheJobsWorkersHaveEnded) {
  FakeClock clock;
  PortHolder holder(&clock);
  ASSERT_TRUE(holder.Reserve("job").ok());
  holder.Tick(&Nobody);
  EXPECT_EQ(holder.held(), 1u) << "its workers are still to come";
  holder.Tick(&One);
  clock.Advance(absl::Hours(9));
  holder.Tick(&One);
  EXPECT_EQ(holder.held(), 1u);
  holder.Tick(&Nobody);
  EXPECT_EQ(holder.held(), 0u);
}

TEST(PortHolder, GivesAPortBackThatNobodyUsed) {
  FakeClock clock;
  PortHolder holder(&clock);
  ASSERT_TRUE(holder.Reserve("job").ok());
  clock.Advance(kUnusedPortTimeout);
  holder.Tick(&Nobody);
  EXPECT_EQ(holder.held(), 0u);
}

TEST(PortHolder, IsBounded) {
  FakeClock clock;
  PortHolder holder(&clock, /*most_ports=*/1);
  ASSERT_TRUE(holder.Reserve("a").ok());
  EXPECT_EQ(holder.Reserve("b").status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace hyperframes
