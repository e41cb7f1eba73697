// What ranks measured, judged: by handwritten facts of real GPUs, and through the ABI of simulated
// ones.
#include "client/c/unfit_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "client/c/hyperframes.h"

namespace hyperframes {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kFirst = "GPU-11111111-2222-3333-4444-555555555555";
constexpr const char* kSecond = "GPU-66666666-7777-8888-9999-000000000000";

doctor::GpuFacts H200(const std::string& uuid) {
  doctor::GpuFacts gpu;
  gpu.uuid = uuid;
  gpu.name = "NVIDIA H200";
  gpu.nvlinks = 18;
  gpu.nvlink_version = 6;
  gpu.pcie_generation = gpu.most_pcie_generation = 5;
  gpu.pcie_width = gpu.most_pcie_width = 16;
  return gpu;
}

// Three GPUs on the node; the job has the first two. As NVML tells of them.
doctor::Facts Node() {
  doctor::Facts facts;
  facts.host.is_root = true;
  facts.host.shared_memory_bytes = 64 * kGiB;
  facts.gpus = {H200(kFirst), H200(kSecond), H200("GPU-of-another-job")};
  facts.gpus[2].nvlinks = 0;
  facts.gpus[2].name = "NVIDIA T4";
  facts.gpus[2].pcie_width = facts.gpus[2].most_pcie_width = 1;
  return facts;
}

json Measured(const char* kind, double seconds) {
  return {{"kind", kind}, {"bytes", 100000000}, {"seconds", seconds}};
}

json Job(const json& measured) { return {{"gpus", {kFirst, kSecond}}, {"measured", measured}}; }

json Judge(const json& job, const doctor::Facts& facts = Node()) {
  const auto read = ReadJobCollectives(job.dump());
  EXPECT_TRUE(read.ok()) << read.status();
  return json::parse(JudgeRealCollectives(*read, facts));
}

TEST(UnfitCollectives, SpeedsAreBusBandwidthsAndPromisesThoseOfTheJobsOwnGpus) {
  json job = Job({Measured("all-reduce", 0.001), Measured("send-receive", 0.001)});
  const json verdict = Judge(job);
  EXPECT_DOUBLE_EQ(verdict["bus_bytes_per_second"]["all-reduce"], 100e9);  // 2 (n - 1) / n is 1.
  EXPECT_DOUBLE_EQ(verdict["bus_bytes_per_second"]["send-receive"], 100e9);
  EXPECT_DOUBLE_EQ(verdict["promised_bytes_per_second"], 450e9);
  EXPECT_EQ(verdict["promised_by"], "18 x NVLink 4");
  EXPECT_TRUE(verdict["unfit"].empty());
  job["gpus"] = {kFirst, kSecond, kFirst, kSecond};
  EXPECT_DOUBLE_EQ(Judge(job)["bus_bytes_per_second"]["all-reduce"], 150e9);
  EXPECT_DOUBLE_EQ(Judge(job)["bus_bytes_per_second"]["send-receive"], 100e9);
}

TEST(UnfitCollectives, BelowATenthTheSentenceSaysWhatWasMeasuredPromisedAndWhy) {
  doctor::Facts facts = Node();
  facts.peer_access.push_back({kFirst, kSecond, "the chipset does not allow it"});
  const json job = Job({Measured("all-reduce", 0.01), Measured("send-receive", 0.001)});
  const json unfit = Judge(job, facts)["unfit"];
  ASSERT_EQ(unfit.size(), 1u);
  EXPECT_EQ(unfit[0]["kind"], "all-reduce");
  EXPECT_EQ(unfit[0]["from"], kFirst);
  EXPECT_EQ(unfit[0]["to"], kSecond);
  EXPECT_THAT(unfit[0]["sentence"].get<std::string>(),
              HasSubstr("leave HyperFrames off: all-reduce GPU-11111111 -> GPU-66666666: "
                        "10.0GB/s, promised 450GB/s (18 x NVLink 4); peer access is off"));
}

TEST(UnfitCollectives, WithoutNvLinkPcieIsPromised) {
  doctor::Facts facts = Node();
  facts.gpus[0].nvlinks = 0;
  EXPECT_EQ(Judge(Job(json::array()), facts)["promised_by"], "PCIe 5 x16");
}

TEST(UnfitCollectives, OfAGpuOnAnotherNodeNothingIsPromisedAndNoSpeedUnfit) {
  json job = Job(json::array({Measured("all-reduce", 10)}));
  job["gpus"] = {kFirst, "GPU-elsewhere"};
  const json verdict = Judge(job);
  EXPECT_EQ(verdict["promised_bytes_per_second"], 0);
  EXPECT_TRUE(verdict["unfit"].empty());
  EXPECT_EQ(Judge(Job(json::array({Measured("all-reduce", 10)})), doctor::Facts())["unfit"].size(),
            0u);
}

TEST(UnfitCollectives, WhatIsNotDoneIsGivenWithItsLikelyCause) {
  doctor::Facts facts = Node();
  facts.host.own_ipc_namespace = true;
  const json job =
      Job(json::array({json{{"kind", "send-receive"}, {"error", "it is not done after 3 s"}}}));
  const json unfit = Judge(job, facts)["unfit"];
  ASSERT_EQ(unfit.size(), 1u);
  EXPECT_THAT(unfit[0]["cause"].get<std::string>(),
              HasSubstr("it is not done after 3 s, perhaps because this container has an IPC"));
  EXPECT_THAT(unfit[0]["remedy"].get<std::string>(), HasSubstr("--ipc=host"));
}

TEST(UnfitCollectives, WhatCannotBeReadIsRefusedByName) {
  const auto refusal = [](const json& job) {
    return std::string(ReadJobCollectives(job.dump()).status().message());
  };
  EXPECT_THAT(refusal(json::object()), HasSubstr("\"gpus\" is empty"));
  EXPECT_THAT(refusal({{"gpus", json::array({1})}}), HasSubstr("gpus[0]"));
  EXPECT_THAT(refusal(Job(json::array({Measured("broadcast", 1)}))), HasSubstr("\"broadcast\""));
  EXPECT_THAT(refusal(Job(json::array({Measured("all-reduce", 0)}))),
              HasSubstr("measured[0]: \"bytes\" is"));
  EXPECT_THAT(refusal(Job(json::array({json{{"kind", "all-reduce"}, {"sceonds", 1}}}))),
              HasSubstr("sceonds"));
  EXPECT_THAT(refusal(Job(json::array({1}))), HasSubstr("measured[0]"));
  json many = json::array();
  while (many.size() < 17) many.push_back(Measured("all-reduce", 1));
  EXPECT_THAT(refusal(Job(many)), HasSubstr("17 elements"));
}

// Through the ABI: the promise is the one that HYPERFRAMES_HOST_DEVICES gives.
json Simulated(const char* devices, const json& gpus) {
  setenv("HYPERFRAMES_HOST_DEVICES", devices, 1);
  hf_machine* machine = nullptr;
  EXPECT_EQ(hf_machine_open("{\"host_bytes\": 0}", &machine), HF_OK) << hf_last_error();
  const json job = {{"gpus", gpus}, {"measured", json::array({Measured("all-reduce", 0.1)})}};
  char* verdict = nullptr;
  EXPECT_EQ(hf_judge_collectives(machine, job.dump().c_str(), &verdict), HF_OK) << hf_last_error();
  json read = verdict == nullptr ? json() : json::parse(verdict);
  hf_free(verdict);
  EXPECT_EQ(hf_judge_collectives(machine, "{}", &verdict), HF_INVALID_ARGUMENT);
  EXPECT_EQ(hf_judge_collectives(nullptr, "{}", &verdict), HF_INVALID_ARGUMENT);
  hf_machine_close(machine);
  unsetenv("HYPERFRAMES_HOST_DEVICES");
  return read;
}

TEST(UnfitCollectives, SimulatedGpusPromiseTheLeastOfWhatTheyAreDescribedWith) {
  const json both = {"A", "B"};
  const char* fast = "A=1MiB@collective-promise=40GB/s;B=1MiB@collective-promise=20GB";
  const json verdict = Simulated(fast, both);
  EXPECT_EQ(verdict["promised_bytes_per_second"], 20e9);
  ASSERT_EQ(verdict["unfit"].size(), 1u);
  EXPECT_THAT(
      verdict["unfit"][0]["sentence"].get<std::string>(),
      HasSubstr("all-reduce A -> B: 1.0GB/s, promised 20.0GB/s (HYPERFRAMES_HOST_DEVICES)"));
  EXPECT_TRUE(Simulated(fast, {"A", "C"})["unfit"].empty());
  const char* half = "A=1MiB@collective-promise=40GB;B=1MiB@peer-promise=40GB";
  EXPECT_EQ(Simulated(half, both)["promised_bytes_per_second"], 0);
  const char* slow = "A=1MiB@collective-promise=1GB;B=1MiB@collective-promise=1GB";
  EXPECT_TRUE(Simulated(slow, both)["unfit"].empty());
}

}  // namespace
}  // namespace hyperframes
