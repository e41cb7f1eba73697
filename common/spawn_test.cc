// /bin/sh is the program: it says what it was given, or what the kernel shows of it.
#include "common/spawn.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>

#include "common/unique_fd.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    from.reset(ends[0]);
    to.reset(ends[1]);
  }
  UniqueFd from;
  UniqueFd to;
};

std::string ReadToTheEnd(int fd) {
  std::string text;
  char piece[256];
  ssize_t got = 0;
  while ((got = read(fd, piece, sizeof(piece))) > 0) text.append(piece, static_cast<size_t>(got));
  return text;
}

int Collect(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// What a program started by `options` says on its standard output, once it has ended with 0.
std::string Say(SpawnOptions options) {
  Pipe said;
  options.output = said.to.get();
  const auto pid = Spawn(options);
  if (!pid.ok()) return pid.status().ToString();
  said.to.reset();
  const std::string text = ReadToTheEnd(said.from.get());
  EXPECT_EQ(Collect(*pid), 0);
  return text;
}

SpawnOptions Shell(const std::string& script) {
  SpawnOptions options;
  options.arguments = {"/bin/sh", "-c", script};
  return options;
}

TEST(Spawn, PassesEveryArgumentAsItIs) {
  SpawnOptions options = Shell("printf '<%s>' \"$0\" \"$@\"");
  options.arguments.insert(options.arguments.end(), {"a b", "", "--c=*"});
  EXPECT_EQ(Say(options), "<a b><><--c=*>");
}

TEST(Spawn, AProgramThatIsMissingIsNotFoundByName) {
  SpawnOptions options;
  options.arguments = {"/nowhere/program"};
  const absl::Status status = Spawn(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/program"));
}

TEST(Spawn, NoDescriptorButTheGivenOneReachesTheProgram) {
  Pipe given, other;
  const UniqueFd open_across_exec(dup(other.to.get()));  // dup clears close-on-exec.
  ASSERT_EQ(write(given.to.get(), "hello", 5), 5);
  given.to.reset();
  // The list of /proc/self/fd has one more, of the folder itself.
  const std::string list =
      "cd /proc/self/fd && for f in *; do [ ! -e $f ] || printf '%s ' $f; done";
  SpawnOptions options = Shell(list + "; cat <&3");
  options.inherited = given.from.get();
  EXPECT_EQ(Say(options), "0 1 2 3 hello");
  EXPECT_EQ(Say(Shell(list)), "0 1 2 ");
}

TEST(Spawn, DescriptorsThatHaveEachOthersNumbersAreNotMixedUp) {
  const UniqueFd kept(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10));
  Pipe given, said;
  ASSERT_EQ(write(given.to.get(), "hello", 5), 5);
  given.to.reset();
  // As in a daemon that was started without a standard input, close-on-exec included.
  ASSERT_EQ(dup3(said.to.get(), STDIN_FILENO, O_CLOEXEC), STDIN_FILENO);
  said.to.reset();
  SpawnOptions options = Shell("cat <&3; cat");
  options.output = STDIN_FILENO;
  options.inherited = given.from.get();
  const auto pid = Spawn(options);
  ASSERT_EQ(dup2(kept.get(), STDIN_FILENO), STDIN_FILENO);
  ASSERT_TRUE(pid.ok()) << pid.status();
  EXPECT_EQ(ReadToTheEnd(said.from.get()), "hello");
  EXPECT_EQ(Collect(*pid), 0);
}

TEST(Spawn, BlockedAndIgnoredSignalsEndTheProgramAllTheSame) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  const auto handler = signal(SIGPIPE, SIG_IGN);
  for (const int number : {SIGTERM, SIGPIPE}) {
    const auto pid = Spawn(Shell("kill -" + std::to_string(number) + " $$; exit 7"));
    ASSERT_TRUE(pid.ok()) << pid.status();
    const int status = Collect(*pid);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
  }
  signal(SIGPIPE, handler);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(Spawn, StandardInputIsEmptyAndOutputGoesNowhereUnlessGiven) {
  EXPECT_EQ(Say(Shell("cat")), "");
  EXPECT_EQ(Say(Shell("readlink /proc/self/fd/0")), "/dev/null\n");
  const std::string path = testing::TempDir() + "/spawn_error";
  SpawnOptions options = Shell("output=$(readlink /proc/$$/fd/1); echo $output >&2");
  options.error_file = path;
  const auto pid = Spawn(options);
  ASSERT_TRUE(pid.ok()) << pid.status();
  EXPECT_EQ(Collect(*pid), 0);
  std::ifstream file(path);
  const std::string said{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(said, "/dev/null\n");
  unlink(path.c_str());
}

TEST(Spawn, StandsInTheGroupAndSessionThatItIsAskedFor) {
  // Of /proc/PID/stat: the process, its group, its session.
  SpawnOptions options = Shell(
      "read pid name state parent group session rest </proc/$$/stat; "
      "echo $((pid == group)) $((pid == session))");
  EXPECT_EQ(Say(options), "0 0\n");
  options.group = SpawnGroup::kOwn;
  EXPECT_EQ(Say(options), "1 0\n");
  options.group = SpawnGroup::kOwnSession;
  EXPECT_EQ(Say(options), "1 1\n");
}

}  // namespace
}  // namespace hyperframes
