// What `hfctl doctor` prints and returns, with simulated GPUs and without any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/run_program.h"
#include "common/exit_code.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// No promise is so high that a machine under load could miss a tenth of it.
constexpr const char* kGood = "2 x 16MiB@peer=20MB,peer-promise=1MB,host-promise=1MB";
constexpr const char* kSlowPeer = "2 x 16MiB@peer=2MB,peer-promise=10GB";

ProgramResult Doctor(std::vector<std::string> arguments,
                     std::vector<std::pair<std::string, std::string>> environment = {}) {
  arguments.insert(arguments.begin(), "doctor");
  // An address where nobody answers: it is not asked.
  environment.emplace_back("HYPERFRAMES_COORDINATOR", "127.0.0.1:1");
  return RunProgram("client/cli/hfctl", arguments, environment);
}

TEST(Doctor, LinksThatKeepTheirPromiseAreHealthyWithoutACoordinator) {
  const ProgramResult done = Doctor({"--host-devices", kGood});
  EXPECT_EQ(done.exit_code, kExitOk) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("SIM-local-0 -> SIM-local-1"));
  EXPECT_THAT(done.out, HasSubstr("\nhealthy ("));
  EXPECT_THAT(done.out, Not(HasSubstr("BROKEN")));
}

TEST(Doctor, ALinkBelowATenthEndsWithOneAndALinePerFinding) {
  const ProgramResult done = Doctor({}, {{"HYPERFRAMES_HOST_DEVICES", kSlowPeer}});
  EXPECT_EQ(done.exit_code, kExitFailed) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("BROKEN: SIM-local-0 -> SIM-local-1: "));
  EXPECT_THAT(done.out, HasSubstr("BROKEN: SIM-local-1 -> SIM-local-0: "));
  EXPECT_THAT(done.out, HasSubstr("promised 10.0GB/s"));
  EXPECT_THAT(done.out, HasSubstr("leave HyperFrames off"));
}

TEST(Doctor, ProgramsGetTheSameAsJson) {
  const ProgramResult done = Doctor({"-o", "json", "--host-devices", kSlowPeer});
  EXPECT_EQ(done.exit_code, kExitFailed) << done.err;
  const nlohmann::json report = nlohmann::json::parse(done.out);
  EXPECT_FALSE(report["healthy"].get<bool>());
  EXPECT_EQ(report["gpus"].size(), 2u);
  EXPECT_EQ(report["paths"].size(), 6u);
  int broken = 0;
  for (const nlohmann::json& finding : report["findings"]) {
    if (finding["severity"] == "broken") ++broken;
  }
  EXPECT_EQ(broken, 2);
  for (const nlohmann::json& path : report["paths"]) {
    EXPECT_EQ(path.contains("promised_bytes_per_second"), path["kind"] == "peer") << path;
  }
}

TEST(Doctor, WithoutAGpuItSaysSoAndChecksTheRest) {
  if (access("/proc/driver/nvidia/version", F_OK) == 0) GTEST_SKIP() << "there is a GPU here";
  const ProgramResult done = Doctor({});
  EXPECT_EQ(done.exit_code, kExitOk) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("limits: locked memory "));
  EXPECT_THAT(done.out, HasSubstr("no link could be measured"));
}

TEST(Doctor, ADescriptionThatCannotBeReadIsBadUsage) {
  const ProgramResult done = Doctor({"--host-devices", "2 x much"});
  EXPECT_EQ(done.exit_code, kExitUsage);
  EXPECT_THAT(done.err, HasSubstr("much"));
}

}  // namespace
}  // namespace hyperframes
