#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <thread>

#include "common/protocol_version.h"
#include "common/random_id.h"
#include "common/shutdown.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesOnceAndMoves) {
  const int raw = open("/dev/null", O_RDONLY | O_CLOEXEC);
  {
    UniqueFd first(raw);
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): that is the point.
    EXPECT_EQ(second.get(), raw);
    UniqueFd& same = second;
    second = std::move(same);
    EXPECT_TRUE(IsOpen(raw));
    errno = 7;
  }
  EXPECT_EQ(errno, 7);
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFd, ReleaseGivesOwnershipAway) {
  const int raw = open("/dev/null", O_RDONLY | O_CLOEXEC);
  { EXPECT_EQ(UniqueFd(raw).release(), raw); }
  EXPECT_TRUE(IsOpen(raw));
  UniqueFd owner(raw);
  owner.reset();
  EXPECT_FALSE(IsOpen(raw));
}

TEST(RandomId, HasTheAskedLengthAndDoesNotRepeat) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(RandomHex(16));
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_EQ(seen.begin()->size(), 32u);
  EXPECT_EQ(seen.begin()->find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(RandomHex(64).size(), 128u);
  EXPECT_NE(RandomIncarnation(), RandomIncarnation());
}

TEST(RandomIdDeathTest, RefusesAnImpossibleLength) {
  EXPECT_DEATH(RandomHex(0), "");
  EXPECT_DEATH(RandomHex(65), "");
}

TEST(TokensEqual, ComparesLengthAndEveryByte) {
  EXPECT_TRUE(TokensEqual("", ""));
  EXPECT_TRUE(TokensEqual("abc", "abc"));
  EXPECT_FALSE(TokensEqual("abc", "abd"));
  EXPECT_FALSE(TokensEqual("abc", "abcd"));
  EXPECT_FALSE(TokensEqual(std::string("a\0b", 3), std::string("a\0c", 3)));
}

TEST(CheckProtocol, WorksOneMinorApartAndNamesThePeerOtherwise) {
  EXPECT_TRUE(CheckProtocol(kProtocolMajor, kProtocolMinor, "agent a").ok());
  EXPECT_TRUE(CheckProtocol(kProtocolMajor, kProtocolMinor + 1, "agent a").ok());
  const std::pair<uint32_t, uint32_t> far[] = {{kProtocolMajor, kProtocolMinor + 2},
                                               {kProtocolMajor + 1, kProtocolMinor},
                                               {0, 9},
                                               {kProtocolMajor, UINT32_MAX}};
  for (const auto& [major, minor] : far) {
    const absl::Status status = CheckProtocol(major, minor, "agent node7");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << major << "." << minor;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("agent node7"));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("upgrade"));
  }
  EXPECT_THAT(std::string(CheckProtocol(0, 0, "client").message()),
              ::testing::HasSubstr("sent no protocol version"));
}

// What a child that runs `body` ends with: its exit code, or minus its signal.
template <typename Body>
int InChild(Body body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(ShutdownSignal, ReturnsForASignalThatCameBeforeTheWait) {
  for (const int signal : {SIGTERM, SIGINT}) {
    EXPECT_EQ(InChild([signal] {
                ShutdownSignal shutdown;
                kill(getpid(), signal);
                shutdown.Wait();
                return 7;
              }),
              7);
  }
}

TEST(ShutdownSignal, ASecondSignalEndsAShutdownThatHangs) {
  EXPECT_EQ(InChild([] {
              ShutdownSignal shutdown;
              kill(getpid(), SIGTERM);
              shutdown.Wait();
              kill(getpid(), SIGTERM);
              return 7;
            }),
            -SIGTERM);
}

TEST(ShutdownSignal, ChildrenCanBeEndedAgain) {
  EXPECT_EQ(InChild([] {
              ShutdownSignal shutdown;
              return InChild([] {
                       ShutdownSignal::UnblockInChild();
                       kill(getpid(), SIGTERM);
                       return 7;
                     }) == -SIGTERM
                         ? 0
                         : 1;
            }),
            0);
}

TEST(ShutdownSignal, NotifyFromAnotherThreadEndsTheWait) {
  ShutdownSignal shutdown;
  std::thread other([&shutdown] { shutdown.Notify(); });
  shutdown.Wait();
  other.join();
}

}  // namespace
}  // namespace hyperframes
