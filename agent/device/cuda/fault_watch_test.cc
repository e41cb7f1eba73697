// Which of a driver's Xids take a GPU out of service. On GPUs that do not exist.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "agent/device/cuda/nvml.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

class FaultWatchTest : public testing::Test {
 protected:
  FaultWatchTest() : path_(testing::TempDir() + "/fault." + std::to_string(getpid())) {
    setenv("HYPERFRAMES_FAKE_FAULT", path_.c_str(), /*overwrite=*/1);
    watch_ = Nvml::Get().value()->WatchFaults().value();
  }
  ~FaultWatchTest() override { unsetenv("HYPERFRAMES_FAKE_FAULT"); }

  bool TakesOut(int xid) {
    std::ofstream(path_) << "0 " << xid;
    return !watch_->Wait(absl::Seconds(5)).value().uuid.empty();
  }

  const std::string path_;
  std::unique_ptr<FaultWatch> watch_;
};

// What ends one program and no other. A borrower that is killed in the middle of a copy over NVLink
// can leave a 137 and a 94 on its lender, which lends on.
TEST_F(FaultWatchTest, HearsNothingOfWhatEndsAProgramOnly) {
  for (const int xid : {13, 31, 32, 39, 40, 41, 43, 45, 68, 69, 71, 77, 94, 108, 137}) {
    EXPECT_FALSE(TakesOut(xid)) << xid;
  }
}

TEST_F(FaultWatchTest, HearsNothingOfWhatOnlyInforms) {
  for (const int xid : {63, 92, 154}) EXPECT_FALSE(TakesOut(xid)) << xid;
}

TEST_F(FaultWatchTest, HearsOfWhatNeedsAResetOrWorse) {
  for (const int xid : {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143}) {
    EXPECT_TRUE(TakesOut(xid)) << xid;
  }
}

}  // namespace
}  // namespace hyperframes
