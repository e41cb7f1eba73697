#include "common/bounded_command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/unique_fd.h"

namespace hyperframes {
namespace {

TEST(BoundedCommand, HandsOnWhatTheProgramSays) {
  std::string output;
  EXPECT_TRUE(RunBounded({{"/bin/echo", "a", "b"}}, &output).ok());
  EXPECT_EQ(output, "a b\n");
}

TEST(BoundedCommand, KillsAProgramThatDoesNotEndAndKeepsWhatItSaid) {
  BoundedCommand command;
  command.arguments = {"/bin/sh", "-c", "echo begun; exec sleep 1000"};
  command.deadline = absl::Milliseconds(300);
  std::string output;
  EXPECT_EQ(RunBounded(command, &output).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(BoundedCommand, KillsAProgramThatIsNoLongerWanted) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd stop(ends[0]);
  { const UniqueFd closed(ends[1]); }
  BoundedCommand command;
  command.arguments = {"/bin/sleep", "1000"};
  command.stop = stop.get();
  std::string output;
  EXPECT_EQ(RunBounded(command, &output).code(), absl::StatusCode::kCancelled);
}

TEST(BoundedCommand, GivesTheProgramItsInput) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd input(ends[0]);
  {
    const UniqueFd writer(ends[1]);
    ASSERT_EQ(write(writer.get(), "word", 4), 4);
  }
  BoundedCommand command;
  command.arguments = {"/bin/cat"};
  command.input = input.get();
  std::string output;
  EXPECT_TRUE(RunBounded(command, &output).ok());
  EXPECT_EQ(output, "word");
}

TEST(BoundedCommand, WithoutInputThereIsNothingToRead) {
  std::string output;
  EXPECT_TRUE(RunBounded({{"/bin/cat"}}, &output).ok());
  EXPECT_EQ(output, "");
}

TEST(BoundedCommand, NamesHowItEnded) {
  std::string output;
  const absl::Status ended = RunBounded({{"/bin/sh", "-c", "exit 7"}}, &output);
  EXPECT_NE(ended.message().find("ended with 7"), std::string::npos) << ended;
  EXPECT_EQ(RunBounded({{"/nowhere/program"}}, &output).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace hyperframes
