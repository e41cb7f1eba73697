// The engine on the host backend: real threads, real copies, real memory limits.
#include "agent/engine/frame_engine.h"

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/device/host/host_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;

constexpr Bytes kSlot = 4096;

std::vector<char> Pattern(int seed, Bytes bytes = kSlot) {
  std::vector<char> data(bytes);
  for (Bytes i = 0; i < bytes; ++i) data[i] = static_cast<char>(seed * 31 + i * 7);
  return data;
}

class FrameEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    HostDeviceOptions options;
    options.uuid = "SIM-test-0";
    options.total_bytes = kGiB;
    device_ = HostDevice::Create(options).value();
  }

  EngineArena Arena(Tier tier, Bytes bytes, const std::string& gpu = "") {
    EngineArena arena;
    arena.lease_id = std::string("lease-") + TierName(tier);
    arena.tier = tier;
    arena.gpu = tier == Tier::kPeer && gpu.empty() ? "SIM-test-1" : gpu;
    arena.memory = device_->Allocate(bytes).value();
    last_arena_data_ = arena.memory->data();
    return arena;
  }

  void Start(std::vector<EngineArena> arenas, FrameEngineOptions options = {}) {
    engine_ = FrameEngine::Create(device_.get(), std::move(arenas), options).value();
  }

  void StartWithBothTiers(FrameEngineOptions options = {}) {
    std::vector<EngineArena> arenas;
    arenas.push_back(Arena(Tier::kPeer, kMiB));
    arenas.push_back(Arena(Tier::kHost, kMiB));
    Start(std::move(arenas), options);
  }

  Placement Put(int ordinal, const std::vector<char>& source, Tier tier = Tier::kPeer,
                const std::string& gpu = "", Bytes preferred = -1) {
    StorageKey key;
    key.block = 7;
    key.ordinal = ordinal;
    return engine_->Put(key, source.data(), source.size(), tier, gpu, preferred, nullptr).value();
  }

  std::vector<char> FetchAndWait(StorageHandle handle) {
    std::vector<char> back(engine_->SizeOf(handle));
    EXPECT_TRUE(engine_->Fetch(handle, back.data(), /*is_prefetch=*/false, nullptr).ok());
    EXPECT_TRUE(engine_->Wait(handle, nullptr).ok());
    return back;
  }

  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<FrameEngine> engine_;
  char* last_arena_data_ = nullptr;
};

TEST_F(FrameEngineTest, BringsBackEveryByteFromEveryTier) {
  StartWithBothTiers();
  for (const Tier tier : {Tier::kPeer, Tier::kHost}) {
    const std::vector<char> source = Pattern(static_cast<int>(tier), 12345);
    const Placement placement = Put(0, source, tier);
    EXPECT_EQ(placement.placed, tier);
    EXPECT_STREQ(placement.overflow_reason, "");
    EXPECT_THAT(engine_->TakeReleasable(0, nullptr), ElementsAre(placement.handle));
    EXPECT_EQ(FetchAndWait(placement.handle), source);
    engine_->Drop(placement.handle);
  }
  EXPECT_TRUE(engine_->Quiesce().ok());
}

}  // namespace
}  // namespace hyperframes
