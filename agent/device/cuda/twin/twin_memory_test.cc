#include "agent/device/cuda/twin/twin_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace hyperframes {
namespace {

constexpr unsigned long long kSome = 5ull << 30;

TEST(TwinMemory, IsHeldUntilTheLastDuplicateIsClosed) {
  const int held = HoldTwinMemory(kSome);
  ASSERT_GE(held, 0);
  const int again = HoldTwinMemory(1);
  EXPECT_EQ(HeldTwinMemory(), kSome + 1);
  const int duplicate = fcntl(held, F_DUPFD_CLOEXEC, 0);
  close(held);
  EXPECT_EQ(HeldTwinMemory(), kSome + 1);
  close(duplicate);
  EXPECT_EQ(HeldTwinMemory(), 1u);
  close(again);
  EXPECT_EQ(HeldTwinMemory(), 0u);
}

TEST(TwinMemory, GoesWithAHolderThatIsKilled) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    const char word = HoldTwinMemory(kSome) >= 0 ? 'h' : 'f';
    if (write(told[1], &word, 1) != 1) _exit(1);
    while (true) pause();
  }
  char word = 0;
  ASSERT_EQ(read(told[0], &word, 1), 1);
  EXPECT_EQ(word, 'h');
  EXPECT_EQ(HeldTwinMemory(), kSome);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(HeldTwinMemory(), 0u);
}

TEST(TwinMemory, HasItsShareAndAUuidOfItsOwn) {
  EXPECT_EQ(TwinBytes(8ull << 30), 4ull << 30);
  EXPECT_EQ(TwinBytes(1ull << 40), 64ull << 30);
  setenv("HYPERFRAMES_TWIN_BYTES", "1048576", 1);
  EXPECT_EQ(TwinBytes(8ull << 30), 1048576u);
  EXPECT_EQ(TwinUuid("GPU-0a000000-0000-0000-0000-000000000001"),
            "GPU-f5000000-0000-0000-0000-000000000001");
}

}  // namespace
}  // namespace hyperframes
