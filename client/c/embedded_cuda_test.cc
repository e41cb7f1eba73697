// A process without an agent on two GPUs that do not exist: which one lends it how much, and what
// an engine on that memory does with threads that have never seen a GPU.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/device/borrowed_memory.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/cuda/nvml.h"
#include "client/c/hyperframes.h"

namespace hyperframes {
namespace {

constexpr Bytes kLease = 64 * kMiB;
constexpr Bytes kStorage = 3 * kMiB + 512;
constexpr int kStorages = 12;

class EmbeddedCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    CudaMachineOptions options;
    options.host_bytes = 0;
    gpus_ = CudaMachine::Open(options).value();
    lender_ = gpus_->gpus()[1]->description().uuid;
    ASSERT_EQ(
        hf_machine_open(
            R"({"backend": "cuda", "gpu_index": 0, "host_bytes": 0, "reserve_bytes": "1GiB"})",
            &machine_),
        HF_OK)
        << hf_last_error();
  }
  void TearDown() override { hf_machine_close(machine_); }

  nlohmann::json Describe() {
    char* text = nullptr;
    EXPECT_EQ(hf_machine_describe(machine_, &text), HF_OK) << hf_last_error();
    const nlohmann::json description = nlohmann::json::parse(text);
    hf_free(text);
    return description;
  }
  Bytes FreeOnLender() const { return Nvml::Get().value()->FreeBytes(lender_).value(); }

  std::unique_ptr<CudaMachine> gpus_;
  std::string lender_;
  hf_machine* machine_ = nullptr;
};

TEST_F(EmbeddedCudaTest, IsOfferedWhatIsFreeLessTheReserve) {
  setenv("HYPERFRAMES_FAKE_OCCUPIED", absl::StrCat(5 * kGiB).c_str(), 1);
  const nlohmann::json description = Describe();
  unsetenv("HYPERFRAMES_FAKE_OCCUPIED");
  ASSERT_EQ(description["devices"].size(), 3u);
  EXPECT_EQ(description["devices"][1]["uuid"], lender_);
  EXPECT_EQ(description["devices"][1]["lendable_bytes"], absl::StrCat(2 * kGiB));
  ASSERT_EQ(description["links"].size(), 1u) << description;
  EXPECT_EQ(description["links"][0]["to"], lender_);
  EXPECT_TRUE(description["unfit_links"].empty()) << description;
}

TEST_F(EmbeddedCudaTest, MovesStoragesFromOneThreadAndBackFromAnotherAndReturnsEveryByte) {
  Device* const gpu = gpus_->gpus()[0];
  const auto sources = BorrowMemory(gpu, gpu, kStorages * kStorage).value();
  const auto back = BorrowMemory(gpu, gpu, kStorages * kStorage).value();
  const Bytes before = FreeOnLender();
  hf_engine* engine = nullptr;
  ASSERT_EQ(
      hf_engine_open(machine_,
                     absl::StrCat(R"({"stash_limit": "4MiB", "leases": [{"device": ")", lender_,
                                  R"(", "tier": "TIER_PEER", "bytes": )", kLease, "}]}")
                         .c_str(),
                     &engine),
      HF_OK)
      << hf_last_error();
  EXPECT_EQ(FreeOnLender(), before - kLease);

  std::vector<hf_placement> placed(kStorages);
  std::thread([&] {
    for (int i = 0; i < kStorages; ++i) {
      char* const source = sources->data() + i * kStorage;
      std::memset(source, 'a' + i, kStorage);
      ASSERT_EQ(hf_put(engine, 0, 0, i, source, kStorage, HF_TIER_PEER, lender_.c_str(), -1,
                       nullptr, &placed[static_cast<size_t>(i)]),
                HF_OK)
          << hf_last_error();
      EXPECT_EQ(placed[static_cast<size_t>(i)].tier, HF_TIER_PEER);
    }
  }).join();
  std::thread([&] {
    for (int i = kStorages - 1; i >= 0; --i) {
      const uint64_t handle = placed[static_cast<size_t>(i)].handle;
      EXPECT_EQ(hf_fetch(engine, handle, back->data() + i * kStorage, 1, nullptr), HF_OK);
      EXPECT_EQ(hf_wait(engine, handle, nullptr), HF_OK) << hf_last_error();
      EXPECT_EQ(hf_drop(engine, handle), HF_OK);
    }
  }).join();
  gpu->RecordCompute(nullptr).value()->Synchronize();  // As the program's next kernel would.
  EXPECT_EQ(std::memcmp(sources->data(), back->data(), kStorages * kStorage), 0);
  EXPECT_EQ(back->data()[kStorage], 'b');
  hf_engine_close(engine);
  EXPECT_EQ(FreeOnLender(), before);
}

TEST_F(EmbeddedCudaTest, IsToldWhatALenderHasNotGot) {
  hf_engine* engine = nullptr;
  const std::string options = absl::StrCat(R"({"leases": [{"device": ")", lender_,
                                           R"(", "tier": "TIER_PEER", "bytes": "64GiB"}]})");
  EXPECT_EQ(hf_engine_open(machine_, options.c_str(), &engine), HF_RESOURCE_EXHAUSTED);
  EXPECT_NE(std::string(hf_last_error()).find(lender_), std::string::npos) << hf_last_error();
  EXPECT_EQ(FreeOnLender(), 8 * kGiB);
}

}  // namespace
}  // namespace hyperframes
