// Where a driver refuses to copy several at once, they are copied one by one. On fake GPUs.
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/device/conformance_backends.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

constexpr Bytes kEach = 4096;

TEST(CudaBatch, FallsBackToSingleCopiesForGoodOnceItWasRefused) {
  const auto backend = ConformanceBackend::Open("cuda").value();
  const auto source = backend->Borrow(backend->compute(), 8 * kEach);
  const auto slots = backend->Borrow(backend->peer(), 8 * kEach);
  const auto stream = backend->CreateStream(Direction::kOut, Tier::kPeer);
  std::vector<CopyPart> parts;
  for (Bytes at = 0; at < 8 * kEach; at += kEach) {
    parts.push_back({slots->data() + at, source->data() + at, kEach});
  }
  ASSERT_TRUE(stream->CopyAll(parts).ok());
  const std::string fake_gpus = getenv("HYPERFRAMES_FAKE_GPUS");
  setenv("HYPERFRAMES_FAKE_GPUS", (fake_gpus + ",unbatched").c_str(), /*overwrite=*/1);
  for (const char value : {'1', '2'}) {
    ASSERT_TRUE(stream->Fill(source->data(), static_cast<uint8_t>(value), 8 * kEach).ok());
    EXPECT_EQ(stream->CopyAll(parts), absl::OkStatus());
    EXPECT_EQ(backend->Read(stream.get(), slots->data(), 8 * kEach),
              std::vector<char>(8 * kEach, value));
    // It could be done again: this lane does not ask any more.
    setenv("HYPERFRAMES_FAKE_GPUS", fake_gpus.c_str(), /*overwrite=*/1);
  }
}

}  // namespace
}  // namespace hyperframes
