// A node on GPUs that do not exist: which memory it lends, that every byte comes back, that an
// agent makes no context, and what it says of GPUs that cannot lend.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/arena/descriptor_client.h"
#include "agent/device/cuda/fake/fake_gpus.h"
#include "agent/service/agent_flags.h"
#include "agent/service/agent_service.h"
#include "agent/service/conversions.h"
#include "agent/service/node.h"
#include "agent/supervisor/process_identity.h"
#include "agent/supervisor/shim.h"
#include "common/eventually.h"
#include "common/random_id.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Bytes kLease = 64 * kMiB;

class CudaNodeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // For this process NVML alone, loaded by its path: later openings by name find it. CUDA's
    // driver is for those that this process starts.
    const std::string fakes = "agent/device/cuda/fake";
    ASSERT_NE(dlopen((fakes + "/libnvidia-ml.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr)
        << dlerror();
    setenv("LD_LIBRARY_PATH", fakes.c_str(), 1);
  }
  CudaNodeTest() {
    char name[] = "/tmp/hfcuda.XXXXXX";
    directory_ = mkdtemp(name);
    setenv("HYPERFRAMES_FAKE_GPUS", "2", 1);
    setenv("HYPERFRAMES_FAKE_OCCUPIED", "0", 1);
    setenv("HYPERFRAMES_FAKE_LOG", (directory_ + "/contexts").c_str(), 1);
    flags_.node = "a";
    flags_.run_directory = directory_;
    flags_.host_bytes = 64 * kMiB;
    flags_.shim_path = "agent/hfshim";
    flags_.probe_path = "agent/hfprobe";
  }
  ~CudaNodeTest() override {
    service_.reset();
    node_.reset();
    EXPECT_NE(access((directory_ + "/contexts").c_str(), F_OK), 0) << "a context was made";
    EXPECT_EQ(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr) << "the driver is here";
    if (system(("rm -rf " + directory_).c_str()) != 0) ADD_FAILURE() << directory_;
  }

  void StartNode() {
    auto machine = OpenMachine(flags_);
    ASSERT_TRUE(machine.ok()) << machine.status();
    NodeOptions options = NodeOptionsOf(flags_, **machine);
    auto node = Node::Create(std::move(options), *std::move(machine));
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    service_ = std::make_unique<AgentService>(node_.get(), &fence_, [] {});
  }
  void StopNode() {
    service_.reset();
    node_.reset();
  }

  absl::StatusOr<LeaseRecord> Prepare(const std::string& id, int gpu, Bytes bytes) {
    LeaseRecord wanted;
    wanted.lease_id = id;
    wanted.job_id = "job";
    wanted.token = token_;
    wanted.device = FakeUuid(gpu);
    wanted.bytes = bytes;
    return node_->leases()->Prepare(wanted);
  }
  void Lend(const std::string& id, int gpu, Bytes bytes = kLease) {
    const auto prepared = Prepare(id, gpu, bytes);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    ASSERT_TRUE(node_->leases()->Commit(id).ok());
  }
  std::unique_ptr<DescriptorClient> Borrower() {
    DescriptorClientOptions options;
    options.socket_path = node_->worker_socket();
    options.reconnect_interval = absl::Milliseconds(10);
    auto client = DescriptorClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  Bytes LentOn(int gpu) {
    for (const DeviceUsage& usage : node_->leases()->Usage()) {
      if (usage.device == FakeUuid(gpu)) return usage.lent_bytes;
    }
    return -1;
  }
  static Bytes UsedOn(int gpu) { return kFakeTotalBytes - FakeFreeBytes(gpu); }
  std::string MachineError() {
    const auto machine = OpenMachine(flags_);
    return machine.ok() ? "it opens" : std::string(machine.status().message());
  }

  const std::string token_ = RandomHex(16);
  std::string directory_;
  AgentFlags flags_;
  EpochFence fence_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<AgentService> service_;
};

TEST_F(CudaNodeTest, LendsRealGpusWhereThereAreSomeAndNobodyAskedForSimulatedOnes) {
  EXPECT_EQ((*OpenMachine(flags_))->backend(), "cuda");
  flags_.simulated_gpus = "2 x 1GiB";
  EXPECT_EQ((*OpenMachine(flags_))->backend(), "host");
  flags_.backend = "cuda";
  EXPECT_THAT(MachineError(), HasSubstr("give one of the two"));
  flags_.simulated_gpus.clear();
  EXPECT_EQ((*OpenMachine(flags_))->backend(), "cuda");
  flags_.backend = "host";
  EXPECT_EQ((*OpenMachine(flags_))->backend(), "host");
  flags_.backend = "rocm";
  EXPECT_THAT(MachineError(), AllOf(HasSubstr("rocm"), HasSubstr("'cuda', 'host' and 'auto'")));
}

TEST_F(CudaNodeTest, SimulatesWhereNoGpuIsSeenUnlessRealOnesWereAskedFor) {
  setenv("HYPERFRAMES_FAKE_GPUS", "0", 1);
  EXPECT_EQ((*OpenMachine(flags_))->backend(), "host");
  flags_.backend = "cuda";
  EXPECT_THAT(MachineError(), HasSubstr("nvidia-smi -L"));
}

TEST_F(CudaNodeTest, NeverReplacesRealGpusBySimulatedOnesBecauseSomethingIsBroken) {
  setenv("HYPERFRAMES_FAKE_GPUS", "2,broken", 1);
  EXPECT_EQ(OpenMachine(flags_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MachineError(), HasSubstr("the driver does not start"));
  flags_.probe_path = directory_ + "/hfprobe";
  EXPECT_EQ(OpenMachine(flags_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(MachineError(), AllOf(HasSubstr("cannot start"), HasSubstr("hfprobe")));
  flags_.backend = "host";
  EXPECT_TRUE(OpenMachine(flags_).ok());
}

TEST_F(CudaNodeTest, StartsTheDriverForAsLongAsItLendsAndForAnotherLeaseWhenThatProcessDied) {
  StartNode();
  EXPECT_TRUE(Descendants(getpid()).empty());
  Lend("a", 0);
  Lend("b", 1);
  const std::vector<ProcessIdentity> lenders = Descendants(getpid());
  ASSERT_EQ(lenders.size(), 1u);
  EXPECT_TRUE(SignalProcess(lenders[0], SIGKILL));
  EXPECT_TRUE(Eventually([&] { return !ProcessRuns(lenders[0]); }));
  EXPECT_EQ(UsedOn(0), kLease) << "lent memory does not end with the process that made it";
  Lend("c", 0);
  EXPECT_EQ(UsedOn(0), 2 * kLease);
  for (const char* lease : {"a", "b", "c"}) node_->leases()->Release(lease, "job_end");
  EXPECT_TRUE(Eventually([] { return Descendants(getpid()).empty(); }));
  EXPECT_TRUE(Eventually([] { return UsedOn(0) + UsedOn(1) == 0; }));
}

TEST_F(CudaNodeTest, KnowsItsGpusByUuidWhereCudaAndNvmlCountThemDifferently) {
  StartNode();
  EXPECT_EQ(node_->machine()->gpus()[0]->description().uuid, FakeUuid(1));
  const std::vector<v1::GpuInfo> gpus = GpusOf(node_.get());
  ASSERT_EQ(gpus.size(), 2u);
  for (const v1::GpuInfo& gpu : gpus) EXPECT_EQ(gpu.uuid(), FakeUuid(gpu.index()));
  Lend("lease", /*gpu=*/0);
  EXPECT_EQ(UsedOn(0), kLease);
  EXPECT_EQ(UsedOn(1), 0);
}

TEST_F(CudaNodeTest, HoldsNothingWhileIdleAndGivesBackEveryByte) {
  StartNode();
  EXPECT_EQ(UsedOn(0), 0);
  Lend("a", 0);
  Lend("b", 0, kLease + 1);  // In granules.
  EXPECT_EQ(UsedOn(0), 2 * kLease + kFakeGranule);
  EXPECT_EQ(LentOn(0), 2 * kLease + 1);
  // The process that allocated closes its own descriptor a moment after it has answered.
  node_->leases()->Release("a", "job_end");
  EXPECT_TRUE(Eventually([] { return UsedOn(0) == kLease + kFakeGranule; }));
  node_->leases()->Release("b", "job_end");
  EXPECT_TRUE(Eventually([] { return UsedOn(0) == 0; }));
}

TEST_F(CudaNodeTest, LendsNothingOfWhatOthersUseNorOfTheReserve) {
  flags_.reserve_bytes = kGiB;
  StartNode();
  setenv("HYPERFRAMES_FAKE_OCCUPIED", absl::StrCat(6 * kGiB).c_str(), 1);
  const v1::GpuInfo gpu = GpusOf(node_.get())[0];
  EXPECT_EQ(gpu.occupied_bytes(), 6 * kGiB);
  EXPECT_EQ(gpu.reserve_bytes(), kGiB);
  const absl::Status refused = Prepare("big", 0, kGiB + 1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("1GiB free"), HasSubstr("2GiB of")));
  EXPECT_TRUE(Prepare("fits", 0, kGiB).ok());
  EXPECT_EQ(GpusOf(node_.get())[0].occupied_bytes(), 6 * kGiB) << "what is lent is not occupied";
}

TEST_F(CudaNodeTest, KeepsAGibibyteInReserveUnlessToldOtherwise) {
  StartNode();
  EXPECT_EQ(GpusOf(node_.get())[0].reserve_bytes(), kGiB);
}

TEST_F(CudaNodeTest, ABorrowersEndGivesItsBytesBack) {
  StartNode();
  Lend("lease", 1);
  auto borrower = Borrower();
  const auto mapped = borrower->MapLease("lease", token_);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  UniqueFd descriptor(mapped->descriptor);
  EXPECT_EQ(mapped->bytes, kLease);
  EXPECT_EQ(UsedOn(1), kLease);
  descriptor.reset();
  borrower.reset();
  EXPECT_TRUE(Eventually([this] { return UsedOn(1) == 0 && LentOn(1) == 0; }));
}

TEST_F(CudaNodeTest, TheNextAgentAdoptsMemoryThatItsPredecessorMade) {
  StartNode();
  Lend("lease", 1);
  auto borrower = Borrower();
  const UniqueFd descriptor(borrower->MapLease("lease", token_)->descriptor);
  StopNode();
  EXPECT_EQ(UsedOn(1), kLease) << "the borrower keeps it";
  StartNode();
  EXPECT_TRUE(Eventually([this] { return !node_->leases()->Usage()[1].awaiting_workers; }));
  EXPECT_EQ(LentOn(1), kLease);
  EXPECT_EQ(UsedOn(1), kLease) << "and no second allocation was made";
  EXPECT_TRUE(Prepare("more", 1, kLease).ok());
  // It stays accounted by the agent's own handle: whatever the borrower closes, and however late.
  node_->leases()->Release("more", "aborted");
  borrower.reset();
  EXPECT_TRUE(Eventually([this] { return LentOn(1) == 0; }));
  EXPECT_TRUE(Eventually([] { return UsedOn(1) == kLease; })) << "this test's own descriptor";
}

TEST_F(CudaNodeTest, AdoptsNoMemoryOfAnotherGpuNorOrdinaryFiles) {
  StartNode();
  Device* const gpu = node_->machine()->Find(FakeUuid(0));
  Device* const other = node_->machine()->Find(FakeUuid(1));
  const auto lent = other->Allocate(kLease);
  ASSERT_TRUE(lent.ok());
  const absl::Status foreign = gpu->Adopt(dup((*lent)->descriptor()), kLease).status();
  EXPECT_EQ(foreign.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("another device"));
  const absl::Status file = gpu->Adopt(memfd_create("x", 0), kLease).status();
  EXPECT_EQ(file.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(other->Adopt(dup((*lent)->descriptor()), kLease).ok());
}

TEST_F(CudaNodeTest, WorkersSeeTheGpusOfTheirNodesRanksByUuid) {
  StartNode();
  GpuMachine* const machine = node_->machine();
  const Device& own = *machine->Find(FakeUuid(1));
  const auto alone = machine->WorkerVariables(own, {});
  EXPECT_EQ(alone.at("CUDA_VISIBLE_DEVICES"), FakeUuid(1));
  EXPECT_EQ(alone.at("HYPERFRAMES_BACKEND"), "cuda");
  EXPECT_EQ(alone.count("HYPERFRAMES_HOST_DEVICES"), 0u);
  const auto both = machine->WorkerVariables(own, {FakeUuid(1), FakeUuid(0)});
  EXPECT_EQ(both.at("CUDA_VISIBLE_DEVICES"), FakeUuid(1) + "," + FakeUuid(0));
}

TEST_F(CudaNodeTest, AJobChoosesNoGpusBehindTheCoordinatorsBack) {
  v1::StartWorkerRequest request;
  (*request.mutable_env())["CUDA_VISIBLE_DEVICES"] = "0";
  WorkerSurroundings surroundings;
  surroundings.device_variables = {{"CUDA_VISIBLE_DEVICES", FakeUuid(0)}};
  const auto refused = WorkerEnvironment(request, surroundings);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST_F(CudaNodeTest, AGpuThatFailsLendsNothingMoreAndSaysWhy) {
  const std::string fault = directory_ + "/fault";
  setenv("HYPERFRAMES_FAKE_FAULT", fault.c_str(), 1);
  StartNode();
  Lend("before", 0);
  const auto tell = [&](const std::string& line) {
    std::ofstream(fault + ".new") << line;
    ASSERT_EQ(rename((fault + ".new").c_str(), fault.c_str()), 0);
    EXPECT_TRUE(Eventually([&] { return access(fault.c_str(), F_OK) != 0; })) << "not taken";
  };
  tell("1 31");  // A program's page fault.
  tell("0 79");
  EXPECT_TRUE(Eventually(
      [&] { return !node_->machine()->CheckUsable(*node_->machine()->Find(FakeUuid(0))).ok(); }));
  for (const v1::GpuInfo& gpu : GpusOf(node_.get())) {
    EXPECT_EQ(gpu.unhealthy(), gpu.uuid() == FakeUuid(0));
    EXPECT_EQ(gpu.unhealthy_reason().find("Xid 79") != std::string::npos, gpu.unhealthy());
  }
  EXPECT_EQ(Prepare("after", 0, kLease).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Prepare("elsewhere", 1, kLease).ok());
  unsetenv("HYPERFRAMES_FAKE_FAULT");
}

class UnusableGpusTest : public CudaNodeTest,
                         public ::testing::WithParamInterface<std::pair<const char*, const char*>> {
};

TEST_P(UnusableGpusTest, AreRefusedByNameWithWhatToDo) {
  setenv("HYPERFRAMES_FAKE_GPUS", absl::StrCat("1,", GetParam().first).c_str(), 1);
  StartNode();
  const std::string uuid = FakeUuid(0);
  const v1::GpuInfo gpu = GpusOf(node_.get())[0];
  EXPECT_TRUE(gpu.unhealthy());
  EXPECT_THAT(gpu.unhealthy_reason(),
              AllOf(HasSubstr(uuid), HasSubstr(GetParam().second), HasSubstr("HYPERFRAMES_MODE")));
  EXPECT_LE(gpu.unhealthy_reason().size(), 512u);
  EXPECT_EQ(Prepare("lease", 0, kLease).status().code(), absl::StatusCode::kUnimplemented);
  v1::StartWorkerRequest request;
  request.set_worker_id("job-1-0");
  request.set_job_id("job");
  request.set_gpu(uuid);
  v1::StartWorkerResponse response;
  const grpc::Status refused = service_->StartWorker(nullptr, &request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr(GetParam().second));
}

INSTANTIATE_TEST_SUITE_P(Kinds, UnusableGpusTest,
                         ::testing::Values(std::make_pair("partitioned", "nvidia-smi -mig 0"),
                                           std::make_pair("private", "by descriptor")),
                         [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace hyperframes
