#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/doctor/examination.h"
#include "client/doctor/host_facts.h"
#include "client/doctor/judgement.h"
#include "client/doctor/nvml_facts.h"
#include "client/doctor/path_facts.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace hyperframes {
namespace doctor {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Seconds(60);

// A folder that stands for the root of a system.
class FakeRoot {
 public:
  FakeRoot() : path_(::testing::TempDir() + "/doctor-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }

  void Write(const std::string& name, const std::string& text) const {
    for (size_t at = name.find('/', 1); at != std::string::npos; at = name.find('/', at + 1)) {
      mkdir((path_ + name.substr(0, at)).c_str(), 0755);
    }
    std::ofstream(path_ + name) << text;
  }

  void Link(const std::string& name, const std::string& target) const {
    Write(name + ".folder-maker", "");
    EXPECT_EQ(symlink(target.c_str(), (path_ + name).c_str()), 0);
  }

  HostFacts Read() const {
    Facts facts;
    HostFactSource(path_).Collect(absl::InfiniteFuture(), &facts);
    return facts.host;
  }

 private:
  std::string path_;
};

TEST(HostFactSource, ReadsTheLimitsOfAContainer) {
  const FakeRoot root;
  root.Write("/proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
  root.Write("/proc/meminfo", "MemTotal: 8 kB\nMemAvailable:    2048 kB\n");
  root.Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  root.Write("/sys/fs/cgroup/memory.current", "4096\n");
  const HostFacts host = root.Read();
  EXPECT_FALSE(host.is_root);
  EXPECT_EQ(host.available_bytes, 2 * kMiB);
  EXPECT_EQ(host.memory_limit, kGiB);
  EXPECT_EQ(host.memory_used, 4 * kKiB);
}

TEST(HostFactSource, ReadsTheFirstVersionOfControlGroupsAndItsWordForNoLimit) {
  const FakeRoot root;
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  root.Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1024\n");
  EXPECT_EQ(root.Read().memory_limit, 2 * kGiB);
  EXPECT_EQ(root.Read().memory_used, 1024);
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(root.Read().memory_limit.has_value());
}

TEST(HostFactSource, AMachineWithoutLimitsHasNone) {
  const FakeRoot root;
  root.Write("/proc/self/status", "CapEff:\t000001ffffffffff\n");
  root.Write("/sys/fs/cgroup/memory.max", "max\n");
  const HostFacts host = root.Read();
  EXPECT_TRUE(host.is_root);
  EXPECT_FALSE(host.memory_limit.has_value());
  EXPECT_FALSE(host.own_pid_namespace);
  EXPECT_FALSE(host.kernel_driver);
}

TEST(HostFactSource, TellsAContainersNamespacesFromTheMachines) {
  const FakeRoot own;
  own.Link("/proc/self/ns/pid", "pid:[4026532281]");
  own.Link("/proc/self/ns/ipc", "ipc:[4026531839]");
  EXPECT_TRUE(own.Read().own_pid_namespace);
  EXPECT_FALSE(own.Read().own_ipc_namespace);
}

TEST(HostFactSource, CountsGpusOfTheKernelAndThoseThatWereGiven) {
  const FakeRoot root;
  root.Write("/proc/driver/nvidia/version", "NVRM version: 580\n");
  root.Write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "");
  root.Write("/proc/driver/nvidia/gpus/0000:02:00.0/information", "");
  for (const char* name : {"nvidia0", "nvidiactl", "nvidia-uvm"}) {
    root.Write(std::string("/dev/") + name, "");
  }
  const HostFacts host = root.Read();
  EXPECT_TRUE(host.kernel_driver);
  EXPECT_EQ(host.gpus_of_kernel, 2);
  EXPECT_EQ(host.device_files, 1);
}

Facts Simulated(const std::string& devices, absl::Duration time) {
  HostMachineOptions options;
  options.devices = *ParseHostDevices(devices);
  options.host_bytes = 64 * kMiB;
  Facts facts;
  SimulatedPathSource source(*HostMachine::Create(std::move(options)), MonotonicClock());
  source.Collect(MonotonicClock()->Now() + time, &facts);
  return facts;
}

TEST(SimulatedPathSource, MeasuresEveryWayBetweenGpusAndToHostMemory) {
  const Facts facts = Simulated("2 x 16MiB@peer=20MB,peer-promise=1GB", kLong);
  EXPECT_THAT(facts.gpus, SizeIs(2));
  ASSERT_THAT(facts.paths, SizeIs(6));
  for (const PathFacts& path : facts.paths) {
    EXPECT_TRUE(path.status.ok()) << PathText(path) << ": " << path.status;
    EXPECT_GT(path.bytes_per_second, 0) << PathText(path);
    EXPECT_EQ(path.simulated_promise, path.kind == PathKind::kPeer ? 1e9 : 0) << PathText(path);
  }
  const Diagnosis diagnosis = Judge(facts);
  EXPECT_FALSE(diagnosis.healthy);
  int broken = 0;
  for (const Finding& finding : diagnosis.findings) {
    if (finding.severity == Severity::kBroken && finding.path >= 0) ++broken;
  }
  EXPECT_EQ(broken, 2) << "both directions between the two GPUs";
}

TEST(SimulatedPathSource, WithoutTimeEveryPathSaysSo) {
  const Facts facts = Simulated("2 x 16MiB", absl::ZeroDuration());
  ASSERT_THAT(facts.paths, SizeIs(6));
  for (const PathFacts& path : facts.paths) EXPECT_TRUE(path.out_of_time);
}

TEST(NvmlFacts, AreAddedToTheGpusThatCudaSees) {
  Facts facts;
  facts.driver_tried = true;
  facts.gpus.resize(1);
  facts.gpus[0].uuid = "GPU-a";
  GpuCondition seen;
  seen.uuid = "GPU-a";
  seen.active_nvlinks = 18;
  seen.mig = true;
  GpuCondition hidden;
  hidden.uuid = "GPU-b";
  AddCondition({"580.65", {seen, hidden}, {{"GPU-a", "GPU-b", "why"}}}, &facts);
  ASSERT_THAT(facts.gpus, SizeIs(2));
  EXPECT_EQ(facts.gpus[0].nvlinks, 18);
  EXPECT_TRUE(facts.gpus[0].mig && facts.gpus[0].visible);
  EXPECT_FALSE(facts.gpus[1].visible);
  EXPECT_EQ(facts.driver_version, "580.65");
  ASSERT_THAT(facts.peer_access, SizeIs(1));
  EXPECT_EQ(facts.peer_access[0].refusal, "why");
}

TEST(NvmlFacts, HideNothingWhereCudaCouldNotBeAsked) {
  Facts facts;
  facts.driver_tried = true;
  facts.driver = absl::FailedPreconditionError("too old");
  GpuCondition gpu;
  gpu.uuid = "GPU-a";
  AddCondition({"418", {gpu}, {}}, &facts);
  EXPECT_TRUE(facts.gpus[0].visible);
}

// Waits in Collect until it is let go.
struct Gate {
  Mutex mutex;
  CondVar changed;
  bool open HF_GUARDED_BY(mutex) = false;
};

class HangingSource final : public FactSource {
 public:
  explicit HangingSource(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  std::string name() const override { return "a driver that hangs"; }
  void Collect(absl::Time /*deadline*/, Facts* /*facts*/) override {
    MutexLock lock(&gate_->mutex);
    gate_->changed.Wait(&gate_->mutex, [this] {
      gate_->mutex.AssertHeld();
      return gate_->open;
    });
  }

 private:
  const std::shared_ptr<Gate> gate_;
};

class NamedGpu final : public FactSource {
 public:
  std::string name() const override { return "a list"; }
  void Collect(absl::Time /*deadline*/, Facts* facts) override {
    facts->gpus.emplace_back();
    facts->gpus.back().uuid = "GPU-a";
  }
};

TEST(Examination, AHangingSourceIsNamedAndWhatCameBeforeIsKept) {
  const auto gate = std::make_shared<Gate>();
  std::vector<std::unique_ptr<FactSource>> sources;
  sources.push_back(std::make_unique<NamedGpu>());
  sources.push_back(std::make_unique<HangingSource>(gate));
  const Facts facts = Examine(std::move(sources), absl::Milliseconds(20), absl::ZeroDuration());
  EXPECT_FALSE(facts.answered);
  // On a loaded machine not even the first may have had its turn.
  EXPECT_EQ(facts.gpus.size(), facts.stuck == "a driver that hangs" ? 1u : 0u);
  MutexLock lock(&gate->mutex);
  gate->open = true;
  gate->changed.NotifyAll();
}

TEST(Examination, AsksAllSourcesInOrder) {
  std::vector<std::unique_ptr<FactSource>> sources;
  sources.push_back(std::make_unique<NamedGpu>());
  sources.push_back(std::make_unique<NamedGpu>());
  const Facts facts = Examine(std::move(sources), kLong, kLong);
  EXPECT_TRUE(facts.answered);
  EXPECT_THAT(facts.gpus, SizeIs(2));
  EXPECT_THAT(facts.stuck, IsEmpty());
}

TEST(Examination, ADescriptionThatCannotBeReadIsRefused) {
  EXPECT_EQ(SourcesHere("2 x nothing").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace doctor
}  // namespace hyperframes
