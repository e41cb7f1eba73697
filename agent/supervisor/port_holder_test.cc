#include "agent/supervisor/port_holder.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

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

TEST(PortHolder, GivesThePortBackOfAJobWhoseWorkersNoTickHasSeen) {
  FakeClock clock;
  PortHolder holder(&clock, /*most_ports=*/1);
  for (const char* job : {"first", "second"}) {
    ASSERT_TRUE(holder.Reserve(job).ok());
    holder.Started(job);
    holder.Tick(&Nobody);
    EXPECT_EQ(holder.held(), 0u);
  }
  holder.Started("unknown");
}

TEST(PortHolder, KeepsThePortOfANextAttemptUntilItsWorkersAreStarted) {
  FakeClock clock;
  PortHolder holder(&clock);
  const int port = *holder.Reserve("job");
  holder.Started("job");
  EXPECT_EQ(*holder.Reserve("job"), port);
  holder.Tick(&Nobody);
  EXPECT_EQ(holder.held(), 1u);
}

TEST(PortHolder, GivesAPortBackThatNobodyUsed) {
  FakeClock clock;
  PortHolder holder(&clock);
  ASSERT_TRUE(holder.Reserve("job").ok());
  clock.Advance(kUnusedPortTimeout);
  holder.Tick(&Nobody);
  EXPECT_EQ(holder.held(), 0u);
}

TEST(PortHolder, TakesItsPortsBackAfterARestartAsSoonAsTheyAreFree) {
  char name[] = "/tmp/hfports.XXXXXX";
  const std::string path = std::string(mkdtemp(name)) + "/ports";
  FakeClock clock;
  int free_port = 0, taken_port = 0;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  UniqueFd worker(socket(AF_INET, SOCK_STREAM, 0));
  {
    PortHolder killed(&clock);
    killed.Restore(path);
    free_port = *killed.Reserve("free");
    taken_port = *killed.Reserve("taken");
    ASSERT_TRUE(killed.Reserve("over").ok());
    killed.Tick([](const std::string& job_id) { return job_id == "over" ? 1 : 0; });
    killed.Tick(&Nobody);
    EXPECT_EQ(killed.held(), 2u);
  }
  address.sin_port = htons(static_cast<uint16_t>(taken_port));
  ASSERT_EQ(bind(worker.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(worker.get(), 1), 0);
  PortHolder holder(&clock);
  holder.Restore(path);
  EXPECT_EQ(holder.held(), 2u) << "what was given back is not taken again";
  EXPECT_EQ(*holder.Reserve("free"), free_port);
  UniqueFd stranger(socket(AF_INET, SOCK_STREAM, 0));
  address.sin_port = htons(static_cast<uint16_t>(free_port));
  EXPECT_NE(bind(stranger.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  worker.reset();
  holder.Tick(&One);
  EXPECT_EQ(*holder.Reserve("taken"), taken_port);
  address.sin_port = htons(static_cast<uint16_t>(taken_port));
  EXPECT_NE(bind(stranger.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  unlink(path.c_str());
  rmdir(name);
}

TEST(PortHolder, GivesAnotherPortWhenItsOwnWentToAStranger) {
  char name[] = "/tmp/hfports.XXXXXX";
  const std::string path = std::string(mkdtemp(name)) + "/ports";
  FakeClock clock;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  {
    PortHolder killed(&clock);
    killed.Restore(path);
    address.sin_port = htons(static_cast<uint16_t>(*killed.Reserve("job")));
  }
  UniqueFd stranger(socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(bind(stranger.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  PortHolder holder(&clock);
  holder.Restore(path);
  EXPECT_NE(*holder.Reserve("job"), ntohs(address.sin_port));
  unlink(path.c_str());
  rmdir(name);
}

TEST(PortHolder, IsBounded) {
  FakeClock clock;
  PortHolder holder(&clock, /*most_ports=*/1);
  ASSERT_TRUE(holder.Reserve("a").ok());
  EXPECT_EQ(holder.Reserve("b").status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace hyperframes
