#include "client/cli/progress.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ProgressTest : public ::testing::Test {
 protected:
  Progress::Options Options(bool terminal = false) {
    Progress::Options options;
    options.clock = &clock_;
    options.out = &out_;
    options.terminal = terminal;
    return options;
  }

  FakeClock clock_;
  std::ostringstream out_;
};

TEST_F(ProgressTest, WaitsUnderTwoSecondsAreSilent) {
  {
    Progress progress("waiting for job-1", Options());
    clock_.Advance(absl::Milliseconds(1999));
    progress.Look();
  }
  EXPECT_EQ(out_.str(), "");
}

TEST_F(ProgressTest, ALineComesAtMostEveryTwoSeconds) {
  Progress progress("waiting for job-1", Options());
  progress.SetDetail("QUEUED: waits for 2 free GPUs");
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Milliseconds(500));
    progress.Look();
  }
  EXPECT_EQ(out_.str(),
            "hfctl: waiting for job-1 (QUEUED: waits for 2 free GPUs), 2.0s\n"
            "hfctl: waiting for job-1 (QUEUED: waits for 2 free GPUs), 4.0s\n");
}

TEST_F(ProgressTest, OnATerminalTheLineIsWrittenOverAndEnded) {
  {
    Progress progress("waiting", Options(/*terminal=*/true));
    progress.SetDetail("QUEUED for a long reason");
    clock_.Advance(absl::Seconds(2));
    progress.Look();
    progress.SetDetail("RUNNING");
    clock_.Advance(absl::Seconds(2));
    progress.Look();
  }
  const std::string text = out_.str();
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const size_t second = text.rfind('\r');
  EXPECT_THAT(text.substr(second), HasSubstr("(RUNNING), 4.0s "));
  EXPECT_EQ(second, text.size() - 1 - second);  // Nothing of the longer line is left.
}

TEST_F(ProgressTest, WithoutAStreamNothingHappens) {
  Progress::Options silent = Options();
  silent.out = nullptr;
  Progress progress("waiting", silent);
  clock_.Advance(absl::Seconds(9));
  progress.Look();
  EXPECT_EQ(out_.str(), "");
}

TEST_F(ProgressTest, ALongSentenceIsCutAndTheTimeIsNot) {
  Progress progress("waiting", Options());
  progress.SetDetail(std::string(5000, 'x'));
  clock_.Advance(absl::Seconds(3));
  progress.Look();
  EXPECT_LT(out_.str().size(), 220u);
  EXPECT_THAT(out_.str(), EndsWith(", 3.0s\n"));
}

TEST_F(ProgressTest, AWatcherThatIsNotNeededEndsAtOnce) {
  Progress progress("waiting", Options());
  { Watched watched(&progress); }
  EXPECT_THAT(out_.str(), SizeIs(0));
}

}  // namespace
}  // namespace hyperframes
