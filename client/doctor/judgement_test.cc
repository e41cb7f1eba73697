#include "client/doctor/judgement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace hyperframes {
namespace doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kFirst = "GPU-11111111-2222-3333-4444-555555555555";
constexpr const char* kSecond = "GPU-66666666-7777-8888-9999-000000000000";

GpuFacts H200(const std::string& uuid) {
  GpuFacts gpu;
  gpu.uuid = uuid;
  gpu.name = "NVIDIA H200";
  gpu.nvlinks = 18;
  gpu.nvlink_version = 6;
  gpu.pcie_generation = gpu.most_pcie_generation = 5;
  gpu.pcie_width = gpu.most_pcie_width = 16;
  gpu.uncorrected_errors = 0;
  gpu.persistence = true;
  return gpu;
}

PathFacts Path(PathKind kind, const std::string& from, const std::string& to,
               const std::string& link, double bytes_per_second) {
  PathFacts path;
  path.kind = kind;
  path.from = from;
  path.to = to;
  path.link = link;
  path.bytes_per_second = bytes_per_second;
  return path;
}

// Two H200 that do what they should, on a machine without limits.
Facts GoodMachine() {
  Facts facts;
  facts.host.is_root = true;
  facts.host.shared_memory_bytes = 64 * kGiB;
  facts.host.kernel_driver = true;
  facts.host.device_files = facts.host.gpus_of_kernel = 2;
  facts.driver_tried = true;
  facts.gpus = {H200(kFirst), H200(kSecond)};
  facts.paths = {Path(PathKind::kPeer, kFirst, kSecond, "nvlink", 380e9),
                 Path(PathKind::kToHost, kFirst, "host:local", "pcie", 55e9)};
  return facts;
}

// The one finding of `facts`, which is expected to be broken (or of another severity).
Finding Only(const Facts& facts, Severity severity = Severity::kBroken) {
  const Diagnosis diagnosis = Judge(facts);
  EXPECT_EQ(diagnosis.findings.size(), 1u);
  if (diagnosis.findings.empty()) return {};
  EXPECT_EQ(diagnosis.findings[0].severity, severity) << Sentence(diagnosis.findings[0]);
  EXPECT_EQ(diagnosis.healthy, severity != Severity::kBroken);
  EXPECT_THAT(diagnosis.findings[0].remedy, Not(IsEmpty()));
  return diagnosis.findings[0];
}

TEST(Promises, AreThoseOfTheDataSheets) {
  EXPECT_DOUBLE_EQ(18 * NvLinkBytesPerSecond(6), 450e9);  // H100, H200.
  EXPECT_DOUBLE_EQ(12 * NvLinkBytesPerSecond(4), 300e9);  // A100.
  EXPECT_DOUBLE_EQ(18 * NvLinkBytesPerSecond(7), 900e9);  // B200.
  EXPECT_NEAR(PcieBytesPerSecond(5, 16), 63e9, 0.1e9);
  EXPECT_NEAR(PcieBytesPerSecond(3, 8), 7.9e9, 0.1e9);
  EXPECT_EQ(PcieBytesPerSecond(9, 16), 0);
  EXPECT_EQ(NvLinkBytesPerSecond(99), 0);
}

TEST(Promises, TheSlowerEndCountsAtItsBest) {
  Facts facts = GoodMachine();
  facts.gpus[1].nvlinks = 6;
  EXPECT_EQ(PromiseOf(facts.paths[0], facts).by, "6 x NVLink 4");
  facts.gpus[0].pcie_width = 4;
  EXPECT_EQ(PromiseOf(facts.paths[1], facts).by, "PCIe 5 x16");
}

TEST(Promises, ACollectivePromisesWhatItsSlowestGpuDoes) {
  Facts facts = GoodMachine();
  facts.gpus[1].nvlinks = 9;
  const PathFacts path = Path(PathKind::kAllReduce, kFirst, kFirst, "nvlink", 1e9);
  EXPECT_DOUBLE_EQ(PromiseOf(path, facts).bytes_per_second, 225e9);
}

TEST(Judgement, AMachineThatKeepsItsPromisesIsHealthy) {
  const Diagnosis diagnosis = Judge(GoodMachine());
  EXPECT_TRUE(diagnosis.healthy);
  EXPECT_THAT(diagnosis.findings, IsEmpty());
  EXPECT_EQ(diagnosis.verdict, "healthy");
}

TEST(Judgement, ALinkBelowATenthIsLeftOffAndTheOthersStay) {
  Facts facts = GoodMachine();
  facts.paths[0].bytes_per_second = 44e9;
  const Finding finding = Only(facts);
  EXPECT_EQ(finding.path, 0);
  EXPECT_EQ(finding.subject, "GPU-11111111 -> GPU-66666666");
  EXPECT_EQ(finding.measured, "44.0GB/s");
  EXPECT_EQ(finding.promised, "450GB/s (18 x NVLink 4)");
  EXPECT_THAT(finding.cause, HasSubstr("another program"));
  EXPECT_EQ(Judge(facts).verdict,
            "leave HyperFrames off these links, the others are usable: " + finding.subject);
}

TEST(Judgement, WhereEveryLinkIsBelowATenthHyperFramesIsLeftOff) {
  Facts facts = GoodMachine();
  facts.paths[0].bytes_per_second = facts.paths[1].bytes_per_second = 1e9;
  const Diagnosis diagnosis = Judge(facts);
  EXPECT_FALSE(diagnosis.healthy);
  EXPECT_EQ(diagnosis.findings.size(), 2u);
  EXPECT_THAT(diagnosis.verdict, HasSubstr("leave HyperFrames off: "));
}

TEST(Judgement, BetweenATenthAndAHalfIsAWarning) {
  Facts facts = GoodMachine();
  facts.paths[0].bytes_per_second = 46e9;
  Only(facts, Severity::kWarning);
  facts.paths[0].bytes_per_second = 226e9;
  EXPECT_THAT(Judge(facts).findings, IsEmpty());
}

TEST(Judgement, NothingIsSaidOfALinkThatPromisesNothing) {
  Facts facts = GoodMachine();
  facts.gpus[0].nvlink_version = 0;
  facts.paths[0].bytes_per_second = 1;
  EXPECT_THAT(Judge(facts).findings, IsEmpty());
}

TEST(Judgement, ASimulatedLinkIsHeldToItsDescription) {
  Facts facts = GoodMachine();
  facts.paths = {Path(PathKind::kPeer, "SIM-local-0", "SIM-local-1", "simulated", 9e6)};
  EXPECT_TRUE(Judge(facts).healthy);
  facts.paths[0].simulated_promise = 100e6;
  EXPECT_THAT(Only(facts).remedy, HasSubstr("HYPERFRAMES_HOST_DEVICES"));
}

TEST(Judgement, ACollectiveIsHeldToItsPromiseLikeAPath) {
  Facts facts = GoodMachine();
  facts.paths.push_back(Path(PathKind::kAllReduce, kFirst, kSecond, "nvlink", 300e9));
  EXPECT_TRUE(Judge(facts).healthy);
  facts.paths.back().bytes_per_second = 6e9;
  EXPECT_EQ(Only(facts).subject, "all-reduce GPU-11111111 -> GPU-66666666");
}

TEST(Judgement, PathsWithoutTheirTurnAreCountedAndNotBlamed) {
  Facts facts = GoodMachine();
  facts.paths[1].out_of_time = true;
  EXPECT_EQ(Only(facts, Severity::kNote).subject, "1 of 2 paths");
}

TEST(Judgement, TheWorstComesFirst) {
  Facts facts = GoodMachine();
  facts.gpus[0].persistence = false;
  facts.gpus[1].uncorrected_errors = 2;
  facts.paths[1].bytes_per_second = 1e9;
  const Diagnosis diagnosis = Judge(facts);
  ASSERT_EQ(diagnosis.findings.size(), 3u);
  EXPECT_EQ(diagnosis.findings[0].severity, Severity::kBroken);
  EXPECT_EQ(diagnosis.findings[1].severity, Severity::kWarning);
  EXPECT_EQ(diagnosis.findings[2].severity, Severity::kNote);
}

TEST(Judgement, ASentenceSaysWhatWasMeasuredPromisedAndWhatToDo) {
  Finding finding = {Severity::kBroken, "a -> b", "1.0GB/s", "63.0GB/s (PCIe 5 x16)", "why", "do"};
  EXPECT_EQ(Sentence(finding), "a -> b: 1.0GB/s, promised 63.0GB/s (PCIe 5 x16); why; do");
  finding.promised = "";
  EXPECT_EQ(Sentence(finding), "a -> b: 1.0GB/s; why; do");
}

// ---- The likely cause of a bad path ----

Facts SlowPeer() {
  Facts facts = GoodMachine();
  facts.paths[0].bytes_per_second = 2e9;
  return facts;
}

Facts UnusableHost(absl::Status status) {
  Facts facts = GoodMachine();
  facts.paths[1].status = std::move(status);
  return facts;
}

TEST(Cause, PeerAccessThatIsOffIsNamedWithItsReason) {
  Facts facts = GoodMachine();
  facts.paths[0].status = absl::FailedPreconditionError("no peer access");
  facts.peer_access = {{kFirst, kSecond, "the chipset does not support it"}};
  const Finding finding = Only(facts);
  EXPECT_EQ(finding.measured, "no way");
  EXPECT_THAT(finding.cause, HasSubstr("peer access is off: the chipset does not support it"));
}

TEST(Cause, PartitionsReachNoPeer) {
  Facts facts = SlowPeer();
  facts.gpus[1].mig = true;
  const Diagnosis diagnosis = Judge(facts);
  ASSERT_EQ(diagnosis.findings.size(), 2u);
  EXPECT_THAT(diagnosis.findings[0].cause, HasSubstr("GPU-66666666 is partitioned (MIG)"));
  EXPECT_EQ(diagnosis.findings[1].measured, "partitioned (MIG)");
}

TEST(Cause, DifferentModels) {
  Facts facts = SlowPeer();
  facts.gpus[1].name = "NVIDIA L40S";
  const Diagnosis diagnosis = Judge(facts);
  ASSERT_EQ(diagnosis.findings.size(), 2u);
  EXPECT_THAT(diagnosis.findings[0].cause,
              HasSubstr("different models (NVIDIA H200, NVIDIA L40S)"));
  EXPECT_EQ(diagnosis.findings[1].subject, "GPU models");
}

TEST(Cause, NvLinksThatAreDown) {
  Facts facts = SlowPeer();
  facts.paths[0].link = "pcie";
  facts.gpus[1].nvlinks = 0;
  EXPECT_THAT(Only(facts).cause, HasSubstr("NVLinks 18 and 0 are up"));
}

TEST(Cause, ASlotWithFewerLanes) {
  Facts facts = GoodMachine();
  facts.gpus[0].pcie_width = 1;
  facts.paths[1].bytes_per_second = 3e9;
  const Diagnosis diagnosis = Judge(facts);
  ASSERT_EQ(diagnosis.findings.size(), 2u);
  EXPECT_THAT(diagnosis.findings[0].cause, HasSubstr("1 of 16 PCIe lanes"));
  EXPECT_EQ(diagnosis.findings[1].measured, "PCIe x1");
}

TEST(Cause, ASlotOfAnOlderGeneration) {
  Facts facts = GoodMachine();
  facts.gpus[0].pcie_generation = 1;
  EXPECT_THAT(Judge(facts).findings, IsEmpty()) << "an idle GPU saves power";
  facts.paths[1].bytes_per_second = 3e9;
  EXPECT_THAT(Only(facts).cause, HasSubstr("runs at PCIe 1 instead of 5"));
}

TEST(Cause, TheLimitOnLockedMemory) {
  Facts facts = UnusableHost(absl::ResourceExhaustedError("cannot pin"));
  facts.host.is_root = false;
  facts.host.memlock = 64 * kKiB;
  const Diagnosis diagnosis = Judge(facts);
  ASSERT_EQ(diagnosis.findings.size(), 2u);
  EXPECT_THAT(diagnosis.findings[0].cause, HasSubstr("lock only 64KiB"));
  EXPECT_EQ(diagnosis.findings[1].subject, "ulimit -l");
  facts.host.is_root = true;  // Who may lock everything is not stopped by it.
  EXPECT_THAT(Only(facts).cause, HasSubstr("cannot pin"));
}

TEST(Cause, TheContainersMemoryLimit) {
  Facts facts = UnusableHost(absl::ResourceExhaustedError("cannot pin"));
  facts.host.memory_limit = 4 * kGiB;
  facts.host.memory_used = 4 * kGiB - 8 * kMiB;
  const Diagnosis diagnosis = Judge(facts);
  ASSERT_EQ(diagnosis.findings.size(), 2u);
  EXPECT_THAT(diagnosis.findings[0].cause, HasSubstr("only 8MiB more of its 4GiB"));
  EXPECT_EQ(diagnosis.findings[1].subject, "memory limit");
}

TEST(Cause, NamespacesOfTheContainersOwn) {
  Facts facts = GoodMachine();
  facts.paths[0].status = absl::FailedPreconditionError("CUDA_ERROR_OPERATING_SYSTEM");
  facts.host.own_ipc_namespace = true;
  EXPECT_THAT(Only(facts).cause, HasSubstr("an IPC namespace of its own"));
}

TEST(Cause, MemoryErrorsOfAGpu) {
  Facts facts = SlowPeer();
  facts.gpus[1].row_remap_failed = true;
  const Diagnosis diagnosis = Judge(facts);
  ASSERT_EQ(diagnosis.findings.size(), 2u);
  EXPECT_THAT(diagnosis.findings[1].cause, HasSubstr("memory of GPU-66666666 has errors"));
  EXPECT_THAT(diagnosis.verdict, HasSubstr("until this is mended: GPU-66666666"));
}

// ---- What is about no single path ----

Facts Without(absl::Status driver) {
  Facts facts = GoodMachine();
  facts.gpus.clear();
  facts.paths.clear();
  facts.driver = std::move(driver);
  return facts;
}

TEST(Machine, WithoutAnyDriverThereIsNothingWrong) {
  Facts facts = Without(absl::NotFoundError("there is no CUDA driver here"));
  facts.host.kernel_driver = false;
  facts.host.device_files = facts.host.gpus_of_kernel = 0;
  EXPECT_EQ(Only(facts, Severity::kNote).measured, "none");
  EXPECT_EQ(Judge(facts).verdict, "nothing is wrong, and no link could be measured");
}

TEST(Machine, AContainerWithoutTheDevicesIsTold) {
  Facts facts = Without(absl::NotFoundError("there is no CUDA driver here"));
  facts.host.device_files = 0;
  EXPECT_THAT(Only(facts).remedy, HasSubstr("--gpus all"));
}

TEST(Machine, AContainerWithoutTheDriversLibraryIsTold) {
  EXPECT_THAT(Only(Without(absl::NotFoundError("libcuda.so.1"))).remedy,
              HasSubstr("NVIDIA_DRIVER_CAPABILITIES"));
}

TEST(Machine, GpusThatCudaDoesNotSee) {
  Facts facts = Without(absl::NotFoundError("CUDA sees no GPU"));
  facts.gpus = {H200(kFirst), H200(kSecond)};
  const Finding finding = Only(facts);
  EXPECT_EQ(finding.measured, "sees none of 2 GPUs");
  EXPECT_THAT(finding.remedy, HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(Machine, ADriverThatIsTooOld) {
  Facts facts = Without(absl::FailedPreconditionError("the driver is too old"));
  facts.driver_version = "418.67";
  const Finding finding = Only(facts);
  EXPECT_EQ(finding.measured, "418.67 does not start");
  EXPECT_THAT(Judge(facts).verdict, HasSubstr("leave HyperFrames off"));
}

TEST(Machine, ABuildWithoutCudaMattersOnlyWhereThereAreGpus) {
  Facts facts = Without(absl::UnimplementedError("no CUDA backend"));
  facts.cuda_in_build = false;
  EXPECT_EQ(Only(facts).subject, "this build");
  facts.host.kernel_driver = false;
  Only(facts, Severity::kNote);
}

TEST(Machine, ADriverThatHangsIsNamed) {
  Facts facts = GoodMachine();
  facts.answered = false;
  facts.stuck = "CUDA";
  EXPECT_EQ(Only(facts).measured, "did not answer in time");
}

TEST(Machine, ASmallLimitOnLockedMemoryIsAWarningBeforeItHurts) {
  Facts facts = GoodMachine();
  facts.host.is_root = false;
  facts.host.memlock = 8 * kMiB;
  EXPECT_EQ(Only(facts, Severity::kWarning).subject, "ulimit -l");
}

TEST(Machine, ASmallSharedMemory) {
  Facts facts = GoodMachine();
  facts.host.shared_memory_bytes = 64 * kMiB;
  const Finding finding = Only(facts, Severity::kWarning);
  EXPECT_EQ(finding.measured, "64MiB");
  EXPECT_THAT(finding.remedy, HasSubstr("--shm-size"));
}

TEST(Machine, APidNamespaceOfItsOwnIsANote) {
  Facts facts = GoodMachine();
  facts.host.own_pid_namespace = true;
  EXPECT_THAT(Only(facts, Severity::kNote).remedy, HasSubstr("--pid=host"));
}

TEST(Machine, GpusThatTheContainerWasNotGivenAreANote) {
  Facts facts = GoodMachine();
  facts.host.gpus_of_kernel = 8;
  EXPECT_EQ(Only(facts, Severity::kNote).measured, "2 of 8 GPUs");
}

TEST(Machine, AHiddenGpuIsANote) {
  Facts facts = GoodMachine();
  facts.gpus[1].visible = false;
  EXPECT_THAT(Only(facts, Severity::kNote).measured, HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(Machine, PersistenceModeOffIsANote) {
  Facts facts = GoodMachine();
  facts.gpus[0].persistence = false;
  EXPECT_THAT(Only(facts, Severity::kNote).remedy, HasSubstr("nvidia-persistenced"));
  facts.gpus[0].persistence = absl::nullopt;
  EXPECT_THAT(Judge(facts).findings, IsEmpty());
}

TEST(Machine, MemoryErrorsAreAWarningAndADefectIsBroken) {
  Facts facts = GoodMachine();
  facts.gpus[0].uncorrected_errors = 3;
  EXPECT_EQ(Only(facts, Severity::kWarning).measured, "3 uncorrected memory errors");
  facts = GoodMachine();
  facts.gpus[0].row_remap_pending = true;
  Only(facts, Severity::kWarning);
  facts.gpus[0].row_remap_failed = true;
  EXPECT_EQ(Only(facts).remedy, "replace the GPU");
}

TEST(Machine, AnOldSlotIsTooSlowForHostMemory) {
  Facts facts = GoodMachine();
  facts.gpus[0].pcie_generation = facts.gpus[0].most_pcie_generation = 3;
  facts.paths[1].bytes_per_second = 12e9;
  EXPECT_THAT(Only(facts, Severity::kWarning).cause, HasSubstr("recomputing"));
}

}  // namespace
}  // namespace doctor
}  // namespace hyperframes
