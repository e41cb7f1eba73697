// What an agent learns from the process that measures, however that process behaves; and the names
// of networks.
#include "agent/service/link_survey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/device/host/host_machine.h"
#include "agent/service/network_profile.h"
#include "agent/service/networks.h"
#include "agent/supervisor/record_file.h"
#include "common/clock.h"
#include "common/eventually.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

// Two GPUs that this process must not measure.
class OtherMachine final : public GpuMachine {
 public:
  OtherMachine() : simulated_(*HostMachine::Create({"n", *ParseHostDevices("2 x 1MiB", "n"), 0})) {}
  std::string backend() const override { return "cuda"; }
  const std::vector<Device*>& gpus() const override { return simulated_->gpus(); }
  Device* host() const override { return simulated_->host(); }
  int IndexOf(const Device& gpu) const override { return simulated_->IndexOf(gpu); }
  absl::Status CheckUsable(const Device&) const override { return absl::OkStatus(); }
  bool CanReach(const Device&, const Device&) const override { return true; }
  std::string LinkKind(const Device&, const Device&) const override { return "nvlink"; }
  std::map<std::string, std::string> WorkerVariables(
      const Device&, const std::vector<std::string>&) const override {
    return {};
  }

 private:
  const std::unique_ptr<HostMachine> simulated_;
};

constexpr const char* kForth =
    R"({"from":"SIM-n-0","to":"SIM-n-1","bytes_per_second":4e11,"latency_s":1e-5,"kind":"nvlink"})";
constexpr const char* kBack =
    R"({"from":"SIM-n-1","to":"SIM-n-0","bytes_per_second":4e11,"latency_s":1e-5,"kind":"nvlink"})";

class LinkSurveyTest : public ::testing::Test {
 protected:
  LinkSurveyTest() {
    char name[] = "/tmp/hfsurvey.XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~LinkSurveyTest() override {
    if (system(("rm -rf " + directory_).c_str()) != 0) ADD_FAILURE() << directory_;
  }

  void Script(const std::string& script) {
    std::ofstream(directory_ + "/probe") << "#!/bin/sh\necho run >> " << directory_ << "/runs\n"
                                         << script << "\n";
    chmod((directory_ + "/probe").c_str(), 0700);
  }
  std::unique_ptr<LinkSurvey> Start(absl::Duration deadline = absl::Seconds(60)) {
    LinkSurveyOptions options;
    options.node = "n";
    options.probe_path = directory_ + "/probe";
    options.kept_path = directory_ + "/links";
    options.deadline = deadline;
    return std::make_unique<LinkSurvey>(options, &machine_, [](const LinkReport&) {});
  }
  LinkReport Learn(absl::Duration deadline = absl::Seconds(60)) {
    const auto survey = Start(deadline);
    EXPECT_TRUE(Eventually([&] { return survey->done(); }));
    return survey->report();
  }
  int Runs() const {
    std::ifstream file(directory_ + "/runs");
    int runs = 0;
    for (std::string line; std::getline(file, line);) ++runs;
    return runs;
  }
  static std::string Echo(const std::string& line) { return "echo '" + line + "'\n"; }
  static std::multiset<std::string> Reasons(const LinkReport& report) {
    std::multiset<std::string> reasons;
    for (const UnmeasuredLink& link : report.unmeasured) reasons.insert(link.reason);
    return reasons;
  }

  OtherMachine machine_;
  std::string directory_;
};

TEST_F(LinkSurveyTest, LearnsEveryLinkOnceUntilTheMachineStartsAnew) {
  Script(Echo(kForth) + Echo(kBack) + Echo(R"({"from":"X","to":"Y","reason":"no_room"})"));
  for (int agent = 0; agent < 2; ++agent) {
    const LinkReport report = Learn();
    ASSERT_EQ(report.links.size(), 2u);
    EXPECT_EQ(report.links[0].from(), "SIM-n-0");
    EXPECT_EQ(report.links[0].bytes_per_second(), 4e11);
    EXPECT_EQ(report.links[0].kind(), "nvlink");
    EXPECT_TRUE(report.unmeasured.empty());
  }
  EXPECT_EQ(Runs(), 1) << "the second agent remembers";
}

TEST_F(LinkSurveyTest, NamesThePathsThatAHangingProbeDidNotComeTo) {
  Script(Echo(kForth) + "exec sleep 600");
  const LinkReport report = Learn(absl::Milliseconds(300));
  EXPECT_EQ(report.links.size(), 1u);
  ASSERT_EQ(Reasons(report), (std::multiset<std::string>{"timed_out"}));
  EXPECT_EQ(report.unmeasured[0].from, "SIM-n-1");
  EXPECT_THAT(report.unmeasured[0].message, HasSubstr("300ms"));
  Learn(absl::Milliseconds(300));
  EXPECT_EQ(Runs(), 2) << "what failed is not remembered";
}

TEST_F(LinkSurveyTest, CountsOnNothingThatACrashedOrAbsentOrBabblingProbeSaid) {
  Script(Echo(kForth) + "kill -SEGV $$");
  const LinkReport crashed = Learn();
  EXPECT_EQ(crashed.links.size(), 1u) << "a line is a line";
  EXPECT_EQ(Reasons(crashed), (std::multiset<std::string>{"probe_failed"}));
  EXPECT_THAT(crashed.unmeasured[0].message, HasSubstr("signal 11"));
  Script(Echo("0 links found"));
  EXPECT_EQ(Reasons(Learn()), (std::multiset<std::string>{"probe_failed", "probe_failed"}));
  Script("yes " + std::string(kForth, 0, 8));
  EXPECT_EQ(Reasons(Learn()), (std::multiset<std::string>{"probe_failed", "probe_failed"}));
  unlink((directory_ + "/probe").c_str());
  const LinkReport absent = Learn();
  EXPECT_EQ(absent.unmeasured.size(), 2u);
  EXPECT_THAT(absent.unmeasured[0].message, HasSubstr("cannot start"));
}

TEST_F(LinkSurveyTest, EndsAProbeUnderWayWithTheAgent) {
  Script("exec sleep 600");
  auto survey = Start();
  ASSERT_TRUE(Eventually([this] { return Runs() == 1; }));
  EXPECT_FALSE(survey->done());
  const absl::Time begin = MonotonicClock()->Now();
  survey.reset();
  EXPECT_LT(MonotonicClock()->Now() - begin, absl::Seconds(60));
}

TEST(ReadNetworks, NamesFabricsByTheirLinkLayerAndLeavesOutWhatIsNoHardware) {
  char name[] = "/tmp/hfsys.XXXXXX";
  const std::string root = mkdtemp(name);
  const auto file = [&root](const std::string& path, const std::string& content) {
    const std::string whole = root + "/class/" + path;
    ASSERT_TRUE(MakeDirectories(whole.substr(0, whole.rfind('/'))).ok());
    std::ofstream(whole) << content << "\n";
  };
  file("infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
  file("infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  file("infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  file("infiniband/mlx5_1/ports/1/link_layer", "Ethernet");
  file("infiniband/mlx5_1/ports/1/state", "1: DOWN");
  file("net/eth0/type", "1");
  file("net/eth0/operstate", "up");
  file("net/eth0/speed", "25000");
  file("net/eth0/device/vendor", "0x15b3");
  file("net/lo/type", "772");
  file("net/docker0/type", "1");
  file("net/ib0/type", "32");
  file("net/ib0/device/vendor", "0x15b3");
  std::vector<std::string> seen;
  for (const NetworkDevice& device : ReadNetworks(root)) {
    seen.push_back(absl::StrCat(device.name, " ", device.kind, " ", device.state));
  }
  EXPECT_THAT(seen, ::testing::ElementsAre("mlx5_0/1 infiniband ACTIVE", "mlx5_1/1 roce DOWN",
                                           "eth0 ethernet up"));
  EXPECT_TRUE(ReadNetworks(root + "/nowhere").empty());
  const auto described = DescribeNetwork("auto", absl::Microseconds(5), /*real=*/true, root);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->bytes_per_second(), 50e9) << "the fastest that is up";
  EXPECT_EQ(described->kind(), "infiniband");
  EXPECT_GT(described->transfer_bytes(), 0);
  EXPECT_EQ(DescribeNetwork("1GB", absl::ZeroDuration(), /*real=*/true, root)->kind(),
            described->kind())
      << "the operator says how fast it is, and not what";
  const auto none = DescribeNetwork("auto", absl::ZeroDuration(), true, root + "/nowhere");
  EXPECT_TRUE(absl::IsNotFound(none.status())) << none.status();
  EXPECT_EQ(system(("rm -rf " + root).c_str()), 0);
}

TEST(DescribeNetwork, IsWhatTheOperatorSaysAndNothingUnlessHeDoes) {
  EXPECT_EQ(DescribeNetwork("off", absl::Seconds(1), false)->ByteSizeLong(), 0u);
  const auto told = DescribeNetwork("20GB", absl::Milliseconds(1), /*real=*/false);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->bytes_per_second(), 20e9);
  EXPECT_EQ(told->latency_s(), 1e-3);
  EXPECT_EQ(told->transfer_bytes(), 0) << "simulated GPUs have no contexts";
  for (const char* wrong : {"0", "fast", ""}) {
    const absl::Status refused = DescribeNetwork(wrong, absl::ZeroDuration(), false).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  }
}

}  // namespace
}  // namespace hyperframes
