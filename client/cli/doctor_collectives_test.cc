// `hfctl doctor` with GPUs and an NCCL that do not exist: what it says of collectives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/run_program.h"
#include "common/exit_code.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kGpus = "agent/device/cuda/fake";
constexpr const char* kNccl = "agent/device/nccl/fake";

std::string Absolute(const std::string& path) {
  char folder[4096];
  return absl::StrCat(getcwd(folder, sizeof folder), "/", path);
}

ProgramResult Doctor(const std::string& gpus, const std::string& nccl,
                     std::vector<std::string> arguments,
                     std::vector<std::pair<std::string, std::string>> more = {}) {
  arguments.insert(arguments.begin(), "doctor");
  more.emplace_back("HYPERFRAMES_FAKE_GPUS", gpus);
  more.emplace_back("HYPERFRAMES_FAKE_NCCL", nccl);
  if (std::none_of(more.begin(), more.end(),
                   [](const auto& one) { return one.first == "LD_LIBRARY_PATH"; })) {
    more.emplace_back("LD_LIBRARY_PATH", absl::StrCat(Absolute(kGpus), ":", Absolute(kNccl)));
  }
  return RunProgram("client/cli/hfctl", arguments, more);
}

TEST(DoctorCollectives, AreMeasuredAmongAllGpus) {
  const ProgramResult done =
      Doctor("3,contexts", "speed=2000000000", {"--timeout", "15s", "-o", "json"});
  EXPECT_EQ(done.exit_code, kExitOk) << done.out << done.err;
  const nlohmann::json report = nlohmann::json::parse(done.out);
  int collectives = 0;
  for (const nlohmann::json& path : report["paths"]) {
    if (path["kind"] != "all-reduce" && path["kind"] != "send-receive") continue;
    ++collectives;
    // The fake takes as long as that speed says; a busy machine only adds to it.
    EXPECT_LT(path["bytes_per_second"].get<double>(), 2.1e9) << path;
    EXPECT_GT(path["bytes_per_second"].get<double>(), 0) << path;
    EXPECT_NE(path["from"], path["to"]);
    EXPECT_EQ(path["link"], "pcie");
  }
  EXPECT_EQ(collectives, 2);
}

TEST(DoctorCollectives, AHangIsNamedAndEndsInTime) {
  const ProgramResult done = Doctor("2,contexts", "hangs=ncclAllReduce", {"--timeout", "15s"});
  EXPECT_EQ(done.exit_code, kExitFailed) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("BROKEN: all-reduce"));
  EXPECT_THAT(done.out, HasSubstr("NCCL hangs while running a first all-reduce"));
}

TEST(DoctorCollectives, ACallThatNeverReturnsIsEndedFromOutside) {
  const ProgramResult done = Doctor("2,contexts", "blocks=ncclGroupEnd", {"--timeout", "4s"});
  EXPECT_EQ(done.exit_code, kExitOk) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("WARNING: all-reduce"));
  EXPECT_THAT(done.out, HasSubstr("NCCL was still "));
}

TEST(DoctorCollectives, AnErrorIsBrokenWithNcclsOwnWords) {
  const ProgramResult done =
      Doctor("2,contexts", "fails=ncclCommInitRankConfig", {"--timeout", "15s"});
  EXPECT_EQ(done.exit_code, kExitFailed) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("unhandled system error; a fake NCCL's error"));
}

TEST(DoctorCollectives, AnNcclThatEndsItsProcessDoesNotEndTheDoctor) {
  const ProgramResult done = Doctor("2,contexts", "dies=ncclSend", {"--timeout", "15s"});
  EXPECT_EQ(done.exit_code, kExitFailed) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("NCCL ended its process while running a first send/recv"));
  EXPECT_THAT(done.out, HasSubstr("-> host:local"));
}

TEST(DoctorCollectives, WithoutNcclTheyAreNotMeasuredAndTheRestIs) {
  const std::string folder = ::testing::TempDir() + "/no-nccl";
  ASSERT_EQ(RunProgram("/bin/mkdir", {"-p", folder}, {}).exit_code, 0);
  // Found first, and no library: another one may be installed on this machine.
  std::ofstream(folder + "/libnccl.so.2").flush();
  const ProgramResult done =
      Doctor("2,contexts", "", {"--timeout", "15s"},
             {{"LD_LIBRARY_PATH", absl::StrCat(Absolute(kGpus), ":", folder)}});
  EXPECT_EQ(done.exit_code, kExitOk) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("WARNING: all-reduce"));
  EXPECT_THAT(done.out, HasSubstr("HYPERFRAMES_NCCL_LIBRARY"));
  EXPECT_THAT(done.out, Not(HasSubstr("BROKEN")));
}

TEST(DoctorCollectives, AnOldNcclIsRefusedByItsVersion) {
  const ProgramResult done =
      Doctor("2,contexts", "", {"--timeout", "15s"},
             {{"HYPERFRAMES_NCCL_LIBRARY", Absolute(absl::StrCat(kNccl, "/libnccl_old.so"))}});
  EXPECT_EQ(done.exit_code, kExitOk) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("too old; install 2.14 or later"));
}

TEST(DoctorCollectives, OneGpuNeedsNone) {
  const ProgramResult done = Doctor("1,contexts", "", {"--timeout", "15s"});
  EXPECT_EQ(done.exit_code, kExitOk) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("NOTE: all-reduce, send/recv: not applicable"));
}

}  // namespace
}  // namespace hyperframes
