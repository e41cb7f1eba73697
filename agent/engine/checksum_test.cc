// Verify mode on every backend: bytes that changed while they waited are found, also where the
// processor cannot read the device's memory. Without a GPU the CUDA half is skipped.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/device/conformance_backends.h"
#include "agent/engine/frame_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kSize = 20 * kMiB + 17;  // Several pieces, the last one ragged.

// A device whose memory the processor is not to touch: what is read of it goes through its lanes.
class OutOfReach final : public Device {
 public:
  explicit OutOfReach(Device* device) : device_(device), description_(device->description()) {
    description_.backend = "out of reach";
  }
  const DeviceDescription& description() const override { return description_; }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(Bytes bytes) override {
    return device_->Allocate(bytes);
  }
  absl::StatusOr<std::unique_ptr<Memory>> Map(int descriptor, Bytes bytes) override {
    return device_->Map(descriptor, bytes);
  }
  absl::StatusOr<std::unique_ptr<Memory>> Adopt(int descriptor, Bytes bytes) override {
    return device_->Adopt(descriptor, bytes);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(Direction direction, Tier tier) override {
    ++streams_;
    return device_->CreateStream(direction, tier);
  }
  absl::StatusOr<std::shared_ptr<const Event>> RecordCompute(void* compute_stream) override {
    return device_->RecordCompute(compute_stream);
  }
  absl::Status ComputeWait(void* compute_stream, const Event& event) override {
    return device_->ComputeWait(compute_stream, event);
  }
  Bytes free_bytes() const override { return device_->free_bytes(); }
  int streams() const { return streams_; }

 private:
  Device* const device_;
  DeviceDescription description_;
  int streams_ = 0;
};

class VerifyTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto backend = ConformanceBackend::Open(GetParam());
    if (!backend.ok()) GTEST_SKIP() << backend.status().message();
    backend_ = *std::move(backend);
  }
  // An engine over host memory of the lender, whose bytes are at arena_.
  std::unique_ptr<FrameEngine> Start(Device* device) {
    EngineArena arena;
    arena.lease_id = "lease";
    arena.tier = Tier::kHost;
    arena.memory = backend_->Borrow(backend_->host(), 24 * kMiB);
    arena_ = arena.memory->data();
    FrameEngineOptions options;
    options.verify = true;
    std::vector<EngineArena> arenas;
    arenas.push_back(std::move(arena));
    return FrameEngine::Create(device, std::move(arenas), options).value();
  }
  // What the second of two reloads says, with one byte of the slot changed between them.
  absl::Status ReloadTwice(FrameEngine* engine, Bytes damaged) {
    const std::unique_ptr<Memory> memory = backend_->Borrow(backend_->compute(), 2 * kSize);
    char* const back = memory->data() + kSize;
    backend_->FillOnCompute(memory->data(), 5, kSize);
    StorageKey key;
    key.ordinal = 42;
    key.block = 7;
    const auto put = engine->Put(key, memory->data(), kSize, Tier::kHost, "", -1, nullptr);
    EXPECT_TRUE(put.ok()) << put.status();
    EXPECT_TRUE(engine->Fetch(put->handle, back, false, nullptr).ok());
    EXPECT_TRUE(engine->Wait(put->handle, nullptr).ok());
    EXPECT_EQ(backend_->ReadOnCompute(back, kSize), std::vector<char>(kSize, 5));
    backend_->FillOnCompute(arena_ + damaged, 6, 1);
    backend_->ReadOnCompute(arena_ + damaged, 1);
    EXPECT_TRUE(engine->Fetch(put->handle, back, false, nullptr).ok());
    absl::Status again = engine->Wait(put->handle, nullptr);
    engine->Drop(put->handle);
    EXPECT_TRUE(engine->Quiesce().ok());
    return again;
  }

  std::unique_ptr<ConformanceBackend> backend_;
  char* arena_ = nullptr;
};

TEST_P(VerifyTest, FindsOneChangedByteWhereverItIs) {
  for (const Bytes damaged : {Bytes{0}, 8 * kMiB, kSize - 1}) {
    const std::unique_ptr<FrameEngine> engine = Start(backend_->compute());
    const absl::Status found = ReloadTwice(engine.get(), damaged);
    EXPECT_EQ(found.code(), absl::StatusCode::kDataLoss) << "byte " << damaged;
    EXPECT_THAT(std::string(found.message()), HasSubstr("storage 42 of block 7"));
  }
}

TEST_P(VerifyTest, ReadsThroughALaneWhatTheProcessorCannot) {
  OutOfReach device(backend_->compute());
  for (const Bytes damaged : {Bytes{0}, 8 * kMiB, kSize - 1}) {
    const std::unique_ptr<FrameEngine> engine = Start(&device);
    EXPECT_EQ(ReloadTwice(engine.get(), damaged).code(), absl::StatusCode::kDataLoss) << damaged;
  }
  EXPECT_EQ(device.streams(), 3 * 3) << "a lane out, a lane in and one to read by, for each engine";
}

INSTANTIATE_TEST_SUITE_P(Backends, VerifyTest, ::testing::Values("host", "cuda"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hyperframes
