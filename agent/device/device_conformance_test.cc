// What every backend promises by device.h. On a machine without GPUs the CUDA half is skipped, and
// counted as skipped.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/device/conformance_backends.h"
#include "agent/device/link_probe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kBytes = 1 * kMiB;

// Every byte is `value`; else the first one that is not. (A matcher per byte would take seconds.)
testing::AssertionResult Holds(const std::vector<char>& bytes, char value) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == value) continue;
    return testing::AssertionFailure()
           << "byte " << i << " of " << bytes.size() << " is " << static_cast<int>(bytes[i])
           << ", not " << static_cast<int>(value);
  }
  return testing::AssertionSuccess();
}

class DeviceConformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<ConformanceBackend>> opened =
        ConformanceBackend::Open(GetParam());
    if (!opened.ok()) GTEST_SKIP() << opened.status();
    backend_ = *std::move(opened);
  }

  Device* compute() { return backend_->compute(); }
  std::unique_ptr<Stream> Out(Tier tier = Tier::kPeer) {
    return backend_->CreateStream(Direction::kOut, tier);
  }
  std::unique_ptr<Stream> In(Tier tier = Tier::kPeer) {
    return backend_->CreateStream(Direction::kIn, tier);
  }
  std::unique_ptr<Memory> OnPeer(Bytes bytes = kBytes) {
    return backend_->Borrow(backend_->peer(), bytes);
  }
  std::unique_ptr<Memory> OnGpu(Bytes bytes = kBytes) { return backend_->Borrow(compute(), bytes); }
  std::unique_ptr<Memory> OnHost(Bytes bytes = kBytes) {
    return backend_->Borrow(backend_->host(), bytes);
  }
  Device* Lender(Tier tier) { return tier == Tier::kPeer ? backend_->peer() : backend_->host(); }

  std::unique_ptr<ConformanceBackend> backend_;
};

TEST_P(DeviceConformance, DescribesItsDevices) {
  const std::string prefix = GetParam() == "cuda" ? "GPU-" : "SIM-";
  for (const Device* gpu : {backend_->compute(), backend_->peer()}) {
    EXPECT_EQ(gpu->description().uuid.rfind(prefix, 0), 0u) << gpu->description().uuid;
    EXPECT_FALSE(gpu->description().name.empty());
    EXPECT_EQ(gpu->description().backend, GetParam());
    EXPECT_GT(gpu->description().total_bytes, 0);
    EXPECT_GT(gpu->free_bytes(), 0);
    EXPECT_LE(gpu->free_bytes(), gpu->description().total_bytes);
  }
}

TEST_P(DeviceConformance, GivesZeroedMemoryThatIsNeverRecycled) {
  const auto stream = Out();
  for (Device* lender : {backend_->peer(), backend_->host()}) {
    for (int i = 0; i < 3; ++i) {
      const auto memory = backend_->Borrow(lender, 8 * kMiB);
      EXPECT_TRUE(Holds(backend_->Read(stream.get(), memory->data(), 8 * kMiB), 0));
      ASSERT_TRUE(stream->Fill(memory->data(), 0xEE, 8 * kMiB).ok());
      stream->Record()->Synchronize();
    }
  }
}

TEST_P(DeviceConformance, TakesBytesAndGivesThemBack) {
  // Where one GPU is both, it gets the context that this makes: no part of what is lent.
  const auto stream = Out();
  const Bytes before = backend_->peer()->free_bytes();
  auto memory = OnPeer(64 * kMiB);
  EXPECT_LE(backend_->peer()->free_bytes(), before - 64 * kMiB);
  memory.reset();
  EXPECT_GT(backend_->peer()->free_bytes(), before - 64 * kMiB);
}

TEST_P(DeviceConformance, RefusesWhatItCannotGiveAndSaysHowMuchThereIs) {
  const auto refused = backend_->peer()->Allocate(Bytes{1} << 46);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr(backend_->peer()->description().uuid));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("free of"));
  for (const Bytes nothing : {Bytes{0}, Bytes{-1}}) {
    EXPECT_EQ(backend_->peer()->Allocate(nothing).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(DeviceConformance, KeepsMappedMemoryAliveWhenItsLenderLetsGo) {
  auto lent = backend_->peer()->Allocate(kBytes).value();
  const auto mapped = compute()->Map(fcntl(lent->descriptor(), F_DUPFD_CLOEXEC, 0), kBytes).value();
  const auto stream = Out();
  ASSERT_TRUE(stream->Fill(mapped->data(), 'k', kBytes).ok());
  stream->Record()->Synchronize();
  lent.reset();
  EXPECT_TRUE(Holds(backend_->Read(stream.get(), mapped->data(), kBytes), 'k'));
}

TEST_P(DeviceConformance, ClosesDescriptorsOnExecAndWhenItCannotMapThem) {
  const auto lent = backend_->peer()->Allocate(kBytes).value();
  EXPECT_EQ(fcntl(lent->descriptor(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  const int other = open("/dev/null", O_RDWR | O_CLOEXEC);
  ASSERT_GE(other, 0);
  EXPECT_EQ(compute()->Map(other, kBytes).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(fcntl(other, F_GETFD), -1) << "descriptor leaked";
  EXPECT_EQ(compute()->Map(-1, kBytes).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceConformance, CopiesAndFillsInTheOrderOfTheQueue) {
  for (const Tier tier : {Tier::kPeer, Tier::kHost}) {
    const auto a = OnGpu();
    const auto b = backend_->Borrow(Lender(tier), kBytes);
    const auto c = OnGpu();
    const auto stream = Out(tier);
    ASSERT_TRUE(stream->Fill(a->data(), 'a', kBytes).ok());
    ASSERT_TRUE(stream->Copy(b->data(), a->data(), kBytes).ok());
    ASSERT_TRUE(stream->Copy(c->data(), b->data(), kBytes).ok());
    ASSERT_TRUE(stream->Fill(a->data(), 'z', kBytes).ok());
    EXPECT_TRUE(Holds(backend_->Read(stream.get(), c->data(), kBytes), 'a'));
    EXPECT_TRUE(Holds(backend_->Read(stream.get(), a->data(), kBytes), 'z'));
    EXPECT_TRUE(Holds(backend_->Read(stream.get(), b->data(), kBytes), 'a'));
    EXPECT_GT(stream->copy_busy(), absl::ZeroDuration());
  }
}

// Odd offsets and lengths: slots are aligned, storages have any length.
TEST_P(DeviceConformance, CopiesExactlyTheBytesThatItIsTold) {
  for (const Tier tier : {Tier::kPeer, Tier::kHost}) {
    const auto from = OnGpu();
    const auto to = backend_->Borrow(Lender(tier), kBytes);
    const auto stream = Out(tier);
    ASSERT_TRUE(stream->Fill(from->data(), 'x', kBytes).ok());
    ASSERT_TRUE(stream->Fill(to->data(), '-', kBytes).ok());
    ASSERT_TRUE(stream->Copy(to->data() + 512, from->data() + 3, 4097).ok());
    ASSERT_TRUE(stream->Copy(to->data(), from->data(), 0).ok());
    const std::vector<char> seen = backend_->Read(stream.get(), to->data(), 8192);
    for (int i = 0; i < 8192; ++i) {
      ASSERT_EQ(seen[i], i >= 512 && i < 512 + 4097 ? 'x' : '-') << "byte " << i;
    }
  }
}

TEST_P(DeviceConformance, CopiesSeveralBetweenWhatCameBeforeAndWhatComesAfter) {
  constexpr Bytes kEach = 4097;
  constexpr Bytes kCount = 100;
  for (const Tier tier : {Tier::kPeer, Tier::kHost}) {
    const auto gpu = OnGpu();
    const auto slots = backend_->Borrow(Lender(tier), kBytes);
    const auto back = OnGpu();
    const auto stream = Out(tier);
    std::vector<CopyPart> out;
    std::vector<CopyPart> in;
    ASSERT_TRUE(stream->Fill(back->data(), '-', kBytes).ok());
    for (Bytes i = 0; i < kCount; ++i) {
      const auto value = static_cast<uint8_t>('!' + i);
      ASSERT_TRUE(stream->Fill(gpu->data() + i * 8192, value, 8192).ok());
      out.push_back({slots->data() + i * 8704, gpu->data() + i * 8192 + 3, kEach});
      in.push_back({back->data() + i * 8192, slots->data() + i * 8704, kEach});
    }
    in.push_back({back->data(), slots->data(), 0});
    ASSERT_TRUE(stream->Delay(absl::Milliseconds(5)).ok());
    ASSERT_TRUE(stream->CopyAll(out).ok());
    ASSERT_TRUE(stream->CopyAll(in).ok());
    ASSERT_TRUE(stream->Fill(slots->data(), 'z', kBytes).ok());
    ASSERT_TRUE(stream->CopyAll({}).ok());
    const std::vector<char> seen = backend_->Read(stream.get(), back->data(), kCount * 8192);
    for (Bytes i = 0; i < kCount; ++i) {
      const auto at = seen.begin() + i * 8192;
      EXPECT_TRUE(Holds({at, at + kEach}, static_cast<char>('!' + i))) << "copy " << i;
      EXPECT_TRUE(Holds({at + kEach, at + 8192}, '-')) << "behind copy " << i;
    }
    EXPECT_TRUE(Holds(backend_->Read(stream.get(), slots->data(), kBytes), 'z'));
  }
}

TEST_P(DeviceConformance, StartsLaterWorkOnlyAfterTheEventItWaitsFor) {
  for (const Tier tier : {Tier::kPeer, Tier::kHost}) {
    const auto source = OnGpu();
    const auto slot = backend_->Borrow(Lender(tier), kBytes);
    const auto back = OnGpu();
    const auto out = Out(tier);
    const auto in = In(tier);
    ASSERT_TRUE(out->Fill(source->data(), 's', kBytes).ok());
    ASSERT_TRUE(out->Delay(absl::Milliseconds(20)).ok());
    ASSERT_TRUE(out->Copy(slot->data(), source->data(), kBytes).ok());
    const auto copied = out->Record();
    ASSERT_TRUE(in->WaitFor(copied).ok());
    ASSERT_TRUE(in->Copy(back->data(), slot->data(), kBytes).ok());
    EXPECT_TRUE(Holds(backend_->Read(in.get(), back->data(), kBytes), 's'));
    EXPECT_TRUE(copied->Done());
  }
}

// Without this chaos mode would find nothing: a delay on one lane must not hold back another.
TEST_P(DeviceConformance, DelaysOneLaneAndNotTheOthers) {
  const auto memory = OnGpu();
  const auto slow = Out();
  const auto fast = In();
  ASSERT_TRUE(slow->Delay(absl::Seconds(1)).ok());
  const auto late = slow->Record();
  ASSERT_TRUE(fast->Delay(absl::Milliseconds(1)).ok());
  ASSERT_TRUE(fast->Fill(memory->data(), 'f', kBytes).ok());
  fast->Record()->Synchronize();
  EXPECT_FALSE(late->Done());
  late->Synchronize();
  EXPECT_TRUE(late->Done());
}

// A driver's queue for a stream has an end: whoever queues more waits for room. What makes room
// here must not wait for whoever waits for it.
TEST_P(DeviceConformance, DelaysMoreWorkThanAQueueHolds) {
  const auto memory = OnGpu();
  const auto stream = Out();
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(stream->Delay(absl::Microseconds(1)).ok());
    ASSERT_TRUE(stream->Fill(memory->data(), static_cast<uint8_t>(i), 512).ok());
    if (i % 3 == 0) stream->Record();  // So that room is wanted for every kind of work.
  }
  EXPECT_TRUE(Holds(backend_->Read(stream.get(), memory->data(), 512), static_cast<char>(1999)));
}

TEST_P(DeviceConformance, OrdersALaneBehindTheProgramAndTheProgramBehindALane) {
  const auto source = OnGpu();
  const auto slot = OnPeer();
  const auto out = Out();
  backend_->FillOnCompute(source->data(), 'p', kBytes);
  ASSERT_TRUE(out->WaitFor(compute()->RecordCompute(nullptr).value()).ok());
  ASSERT_TRUE(out->Delay(absl::Milliseconds(20)).ok());
  ASSERT_TRUE(out->Copy(slot->data(), source->data(), kBytes).ok());
  ASSERT_TRUE(compute()->ComputeWait(nullptr, *out->Record()).ok());
  backend_->FillOnCompute(source->data(), 'q', kBytes);  // The next kernel reuses the memory.
  EXPECT_TRUE(Holds(backend_->Read(out.get(), slot->data(), kBytes), 'p'));
  EXPECT_TRUE(Holds(backend_->ReadOnCompute(source->data(), kBytes), 'q'));
}

TEST_P(DeviceConformance, SaysWhoseTimeAWaitCosts) {
  const auto out = Out();
  const absl::Duration before = compute()->measured_exposed_wait();
  ASSERT_TRUE(out->Delay(absl::Milliseconds(200)).ok());
  const auto late = out->Record();
  ASSERT_TRUE(compute()->ComputeWait(nullptr, *late).ok());
  EXPECT_EQ(compute()->compute_wait_blocks(), GetParam() == "host");
  if (compute()->compute_wait_blocks()) {
    EXPECT_TRUE(late->Done());
    return;
  }
  EXPECT_FALSE(late->Done()) << "the caller was blocked";
  const auto memory = OnGpu();
  backend_->ReadOnCompute(memory->data(), kBytes);
  EXPECT_GE(compute()->measured_exposed_wait() - before, absl::Milliseconds(100));
}

TEST_P(DeviceConformance, RecordsMoreEventsThanAnybodyKeeps) {
  const auto stream = Out();
  const auto memory = OnGpu();
  std::shared_ptr<const Event> kept;
  for (int i = 0; i < 20000; ++i) {
    if (i % 100 == 0) {
      ASSERT_TRUE(stream->Fill(memory->data(), 'e', 4096).ok());
    }
    const auto event = stream->Record();
    if (i % 1000 == 0) kept = event;
  }
  stream->Record()->Synchronize();
  EXPECT_TRUE(kept->Done());
}

TEST_P(DeviceConformance, FinishesItsQueueBeforeItGoes) {
  const auto from = OnGpu();
  const auto to = OnHost();
  {
    const auto stream = Out(Tier::kHost);
    ASSERT_TRUE(stream->Fill(from->data(), 'q', kBytes).ok());
    ASSERT_TRUE(stream->Delay(absl::Milliseconds(10)).ok());
    ASSERT_TRUE(stream->Copy(to->data(), from->data(), kBytes).ok());
  }
  EXPECT_TRUE(Holds(std::vector<char>(to->data(), to->data() + kBytes), 'q'));
}

TEST_P(DeviceConformance, TakesWorkFromThreadsThatNeverSawTheGpu) {
  const auto from = OnGpu();
  const auto to = OnPeer();
  const auto stream = Out();
  ASSERT_TRUE(stream->Fill(from->data(), 't', kBytes).ok());
  std::vector<std::thread> threads;
  constexpr int kThreads = 4;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      constexpr Bytes kShare = kBytes / kThreads;
      for (Bytes at = t * kShare; at < (t + 1) * kShare; at += 4096) {
        EXPECT_TRUE(stream->Copy(to->data() + at, from->data() + at, 4096).ok());
        EXPECT_NE(stream->Record(), nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Holds(backend_->Read(stream.get(), to->data(), kBytes), 't'));
}

TEST_P(DeviceConformance, RefusesWhatCannotBeMeant) {
  const auto memory = OnGpu();
  const auto stream = Out();  // Goes first: of several copies the good ones may have been queued.
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(stream->Copy(memory->data(), nullptr, 1).code(), kRefused);
  EXPECT_EQ(stream->Copy(memory->data(), memory->data(), -1).code(), kRefused);
  const CopyPart good = {memory->data(), memory->data() + 8, 8};
  EXPECT_EQ(stream->CopyAll({good, {memory->data() + 16, nullptr, 1}}).code(), kRefused);
  EXPECT_EQ(stream->CopyAll({good, {memory->data() + 16, memory->data() + 8, -1}}).code(),
            kRefused);
  EXPECT_EQ(stream->Fill(nullptr, 0, 1).code(), kRefused);
  EXPECT_EQ(stream->WaitFor(nullptr).code(), kRefused);
  EXPECT_EQ(stream->Delay(absl::Seconds(-1)).code(), kRefused);
  EXPECT_EQ(stream->Delay(absl::InfiniteDuration()).code(), kRefused);
  EXPECT_EQ(compute()->CreateStream(Direction::kOut, Tier::kKeep).status().code(), kRefused);
}

TEST_P(DeviceConformance, HasLinksThatCanBeMeasured) {
  for (const Tier tier : {Tier::kPeer, Tier::kHost}) {
    const auto from = OnGpu(64 * kMiB);
    const auto to = backend_->Borrow(Lender(tier), 64 * kMiB);
    LinkProbeOptions options;
    options.large_bytes = 64 * kMiB;
    for (const Direction direction : {Direction::kOut, Direction::kIn}) {
      const auto stream = backend_->CreateStream(direction, tier);
      const bool out = direction == Direction::kOut;
      const auto measured = ProbeLink(stream.get(), out ? *to : *from, out ? *from : *to, options);
      ASSERT_TRUE(measured.ok()) << measured.status();
      EXPECT_GT(measured->bytes_per_second, 1e6);
      printf("%s %s %s: %.1f GB/s, latency %.1f us\n", GetParam().c_str(), DirectionName(direction),
             TierName(tier), measured->bytes_per_second / 1e9,
             absl::ToDoubleMicroseconds(measured->latency));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceConformance, testing::Values("host", "cuda"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

}  // namespace
}  // namespace hyperframes
