#include <fcntl.h>
#include <gmock/gmock.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "agent/arena/channel_fixture.h"
#include "agent/arena/descriptor_wire.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

UniqueFd RawConnection(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd raw(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(raw.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return raw;
}

// What the server answers before it closes; fails the test when it does not close.
WireError LastWords(int raw) {
  Received received;
  WireError error = WireError::kNone;
  WireError last = WireError::kNone;
  const bool closed = Eventually([&] {
    const ReceiveResult result = ReceiveWire(raw, &received, &error);
    if (result == ReceiveResult::kMessage) {
      last = static_cast<WireError>(received.message.error);
      EXPECT_NE(received.message.code, 0);
      EXPECT_GT(strlen(received.message.text), 10u);
    }
    return result == ReceiveResult::kClosed;
  });
  EXPECT_TRUE(closed) << "the connection must be closed after a refused message";
  return last;
}

WireMessage Message(WireType type) {
  WireMessage message;
  message.type = static_cast<uint16_t>(type);
  return message;
}

TEST_F(ChannelTest, PassesTheMemoryOfALeaseToTheHolderOfItsToken) {
  const std::string token = agent_->Lend("a", kMiB);
  auto client = Connect();
  auto lease = client->MapLease("a", token);
  ASSERT_TRUE(lease.ok()) << lease.status();
  UniqueFd descriptor(lease->descriptor);
  EXPECT_EQ(lease->bytes, kMiB);
  struct stat file;
  ASSERT_EQ(fstat(descriptor.get(), &file), 0);
  EXPECT_EQ(file.st_size, kMiB);
  EXPECT_NE(fcntl(descriptor.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(agent_->server->counters().mappings_opened, 1);
  ASSERT_TRUE(client->ReturnLease("a").ok());
  EXPECT_EQ(agent_->lent(), 0);
  EXPECT_EQ(agent_->server->counters().mappings_closed, 1);
}

TEST_F(ChannelTest, RefusesEveryTokenButTheLeasesOwn) {
  const std::string mine = agent_->Lend("mine", kMiB);
  const std::string theirs = agent_->Lend("theirs", kMiB);
  auto client = Connect();
  EXPECT_EQ(client->MapLease("mine", theirs).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(client->MapLease("mine", "").status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(client->MapLease("mine", std::string(500, 'a')).status().code(),
            absl::StatusCode::kPermissionDenied);
  for (const char* guessed : {"min", "mine2", "*", "", "../leases/mine"}) {
    EXPECT_EQ(client->MapLease(guessed, mine).status().code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(agent_->server->counters().mappings_opened, 0);
}

TEST_F(ChannelTest, LetsNobodyReturnOrOfferALeaseThatAnotherProcessHolds) {
  const std::string token = agent_->Lend("a", kMiB);
  ASSERT_TRUE(agent_->table->Map("a", token, IdentifyProcess(getppid())).ok());
  UniqueFd raw = RawConnection(directory_ + "/socket");
  ASSERT_TRUE(SendWire(raw.get(), Message(WireType::kHello)).ok());
  WireMessage returned = Message(WireType::kReturn);
  SetWireText("a", returned.id, sizeof(returned.id));
  ASSERT_TRUE(SendWire(raw.get(), returned).ok());
  WireMessage reported = Message(WireType::kReported);
  reported.sequence = 3;
  ASSERT_TRUE(SendWire(raw.get(), reported).ok());
  Received received;
  WireError error;
  ASSERT_TRUE(Eventually([&] {
    return ReceiveWire(raw.get(), &received, &error) == ReceiveResult::kMessage &&
           received.message.sequence == 3;
  }));
  EXPECT_EQ(agent_->lent(), kMiB);
}

TEST_F(ChannelTest, NeverShowsWhatAnEarlierLeaseLeftInMemory) {
  auto client = Connect();
  const std::string first = agent_->Lend("first", kMiB);
  UniqueFd old(client->MapLease("first", first)->descriptor);
  const std::string secret(kMiB, 'S');
  ASSERT_EQ(pwrite(old.get(), secret.data(), secret.size(), 0), kMiB);
  ASSERT_TRUE(client->ReturnLease("first").ok());
  const std::string second = agent_->Lend("second", kMiB);
  UniqueFd fresh(client->MapLease("second", second)->descriptor);
  std::string seen(kMiB, 'x');
  ASSERT_EQ(pread(fresh.get(), &seen[0], seen.size(), 0), kMiB);
  EXPECT_EQ(seen, std::string(kMiB, '\0'));
}

TEST_F(ChannelTest, HandsLeasesBackToARestartedAgentWithoutLosingAByte) {
  const std::string token = agent_->Lend("a", kMiB);
  auto client = Connect();
  UniqueFd memory(client->MapLease("a", token)->descriptor);
  ASSERT_EQ(pwrite(memory.get(), "frame", 5, 0), 5);
  RestartAgent();
  ASSERT_TRUE(Eventually([&] { return agent_->server->counters().mappings_opened == 1; }));
  EXPECT_EQ(agent_->lent(), kMiB);
  auto again = client->MapLease("a", token);
  ASSERT_TRUE(again.ok()) << again.status();
  UniqueFd same(again->descriptor);
  char seen[5];
  ASSERT_EQ(pread(same.get(), seen, 5, 0), 5);
  EXPECT_EQ(std::string(seen, 5), "frame");
  ASSERT_TRUE(client->ReturnLease("a").ok());
  EXPECT_EQ(agent_->lent(), 0);
}

TEST_F(ChannelTest, TellsARestartedAgentWhatWasReturnedWhileItWasAway) {
  const std::string token = agent_->Lend("a", kMiB);
  auto client = Connect();
  UniqueFd memory(client->MapLease("a", token)->descriptor);
  agent_.reset();
  EXPECT_TRUE(client->ReturnLease("a").ok());
  agent_ = std::make_unique<ArenaOfAgent>(directory_);
  EXPECT_TRUE(Eventually([&] { return agent_->lent() == 0; }, absl::Seconds(5)));
}

TEST_F(ChannelTest, AnswersWithUnavailableWhileTheAgentIsAway) {
  const std::string token = agent_->Lend("a", kMiB);
  DescriptorClientOptions options;
  options.socket_path = directory_ + "/socket";
  options.timeout = absl::Milliseconds(100);
  auto client = DescriptorClient::Connect(options);
  ASSERT_TRUE(client.ok());
  agent_.reset();
  EXPECT_EQ((*client)->MapLease("a", token).status().code(), absl::StatusCode::kUnavailable);
  const absl::Status nobody = DescriptorClient::Connect(options).status();
  EXPECT_EQ(nobody.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(nobody.message()), HasSubstr(directory_ + "/socket"));
}

TEST_F(ChannelTest, AsksTheHolderForARevokedLeaseOnce) {
  const std::string token = agent_->Lend("a", kMiB);
  auto client = Connect();
  EXPECT_FALSE(agent_->server->SendRevocation("a")) << "nobody has it mapped yet";
  UniqueFd memory(client->MapLease("a", token)->descriptor);
  ASSERT_TRUE(agent_->table->Revoke("a").ok());
  EXPECT_TRUE(agent_->server->SendRevocation("a"));
  EXPECT_TRUE(agent_->server->SendRevocation("a"));
  std::string asked;
  ASSERT_TRUE(Eventually([&] { return client->TakeRevocation(&asked); }));
  EXPECT_EQ(asked, "a");
  EXPECT_TRUE(client->ReturnLease("a").ok());
  EXPECT_FALSE(client->TakeRevocation(&asked));
  EXPECT_EQ(agent_->lent(), 0);
}

TEST_F(ChannelTest, AForkedChildGetsAnErrorAndHoldsNoMemory) {
  const std::string token = agent_->Lend("a", kMiB);
  auto client = Connect();
  UniqueFd memory(client->MapLease("a", token)->descriptor);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        client->MapLease("a", token).status().code() == absl::StatusCode::kFailedPrecondition &&
        client->ReturnLease("a").code() == absl::StatusCode::kFailedPrecondition;
    client.reset();  // Must not hang either.
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_TRUE(Eventually([&] { return waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client->MapLease("a", token).ok()) << "the parent's channel is untouched";
}

TEST_F(ChannelTest, AnswersEveryMalformedMessageWithItsOwnCodeAndCloses) {
  const std::string path = directory_ + "/socket";
  const auto answer_to = [&](const void* bytes, size_t length) {
    UniqueFd raw = RawConnection(path);
    EXPECT_EQ(send(raw.get(), bytes, length, MSG_NOSIGNAL), static_cast<ssize_t>(length));
    return LastWords(raw.get());
  };
  WireMessage bad[4] = {};
  for (WireMessage& message : bad) message = Message(WireType::kHello);
  EXPECT_EQ(answer_to(bad, 100), WireError::kTruncated);
  EXPECT_EQ(answer_to(bad, 513), WireError::kOversized);
  bad[0].magic = 1;
  EXPECT_EQ(answer_to(&bad[0], 512), WireError::kBadMagic);
  bad[1].version = 2;
  EXPECT_EQ(answer_to(&bad[1], 512), WireError::kBadVersion);
  bad[2].type = 99;
  EXPECT_EQ(answer_to(&bad[2], 512), WireError::kUnknownType);
  memset(bad[3].id, 'a', sizeof(bad[3].id));
  EXPECT_EQ(answer_to(&bad[3], 512), WireError::kBadString);
  const WireMessage early = Message(WireType::kMap);
  EXPECT_EQ(answer_to(&early, 512), WireError::kNoHello);
  EXPECT_EQ(agent_->server->counters().refused_messages, 7);
}

TEST_F(ChannelTest, SurvivesRandomBytes) {
  std::mt19937 random(7);
  const std::string token = agent_->Lend("a", kMiB);
  for (int round = 0; round < 500; ++round) {
    UniqueFd raw = RawConnection(directory_ + "/socket");
    WireMessage noise = Message(WireType::kHello);
    char* bytes = reinterpret_cast<char*>(&noise);
    const int damaged = 1 + random() % 16;
    for (int i = 0; i < damaged; ++i) bytes[random() % sizeof(noise)] = random();
    const size_t length = random() % 4 == 0 ? 1 + random() % sizeof(noise) : sizeof(noise);
    ASSERT_GT(send(raw.get(), bytes, length, MSG_NOSIGNAL), 0);
  }
  ASSERT_TRUE(Eventually([&] {
    const auto counters = agent_->server->counters();
    return counters.connections_opened == counters.connections_closed;
  }));
  EXPECT_TRUE(Connect()->MapLease("a", token).ok()) << "and still serves";
}

TEST_F(ChannelTest, BoundsItsConnections) {
  std::vector<UniqueFd> held;
  for (int i = 0; i < 8; ++i) {
    held.push_back(RawConnection(directory_ + "/socket"));
    ASSERT_TRUE(Eventually([&] { return agent_->server->counters().connections_opened == i + 1; }));
  }
  UniqueFd ninth = RawConnection(directory_ + "/socket");
  EXPECT_EQ(LastWords(ninth.get()), WireError::kTooManyConnections);
}

TEST_F(ChannelTest, TakesOverAStaleSocketAndRefusesALivingAgentsAndAFile) {
  const std::string path = directory_ + "/other";
  {
    UniqueFd stale(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  EXPECT_TRUE(ListeningSocket::Open(path).ok()) << "a dead agent's socket is no obstacle";

  const absl::Status used = ListeningSocket::Open(directory_ + "/socket").status();
  EXPECT_EQ(used.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(used.message()), HasSubstr("in use"));
  EXPECT_NE(Connect(), nullptr) << "and the living agent keeps its socket";

  std::ofstream(path) << "precious";
  const absl::Status file = ListeningSocket::Open(path).status();
  EXPECT_EQ(file.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(file.message()), HasSubstr("not a socket"));
  std::string content;
  std::ifstream(path) >> content;
  EXPECT_EQ(content, "precious");
}

}  // namespace
}  // namespace hyperframes
