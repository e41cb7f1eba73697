// The engine on the host backend: real threads, real copies, real memory limits.
#include "agent/engine/frame_engine.h"

#include <atomic>
#include <cstring>
#include <deque>
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
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Bytes kSlot = 4096;

std::vector<char> Pattern(int seed, Bytes bytes = kSlot) {
  std::vector<char> data(bytes);
  for (Bytes i = 0; i < bytes; ++i) data[i] = static_cast<char>(Bytes{seed} * 31 + i * 7);
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
    sources_.push_back(source);  // Outlives the copy.
    return engine_
        ->Put(key, sources_.back().data(), static_cast<Bytes>(source.size()), tier, gpu, preferred,
              nullptr)
        .value();
  }

  std::vector<char> FetchAndWait(StorageHandle handle) {
    std::vector<char> back(engine_->SizeOf(handle));
    EXPECT_TRUE(engine_->Fetch(handle, back.data(), /*is_prefetch=*/false, nullptr).ok());
    EXPECT_TRUE(engine_->Wait(handle, nullptr).ok());
    return back;
  }

  std::unique_ptr<HostDevice> device_;
  std::deque<std::vector<char>> sources_;
  std::unique_ptr<FrameEngine> engine_;  // Behind the sources: it is drained first.
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

TEST_F(FrameEngineTest, FetchesAsOftenAsARetainedGraphAsks) {
  StartWithBothTiers();
  const std::vector<char> source = Pattern(1);
  const StorageHandle handle = Put(0, source).handle;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(FetchAndWait(handle), source);
  EXPECT_EQ(engine_->stats().fetches[static_cast<int>(Tier::kPeer)], 3);
  EXPECT_EQ(engine_->stats().reload_bytes, kSlot);
  engine_->Drop(handle);
  EXPECT_EQ(engine_->stats().reload_bytes, 0);
}

TEST_F(FrameEngineTest, FillsTwoBuffersOfOneStorageBeforeEitherIsWaitedFor) {
  StartWithBothTiers();
  const std::vector<char> source = Pattern(1);
  const StorageHandle handle = Put(0, source).handle;
  std::vector<char> first(kSlot);
  std::vector<char> second(kSlot);
  ASSERT_TRUE(engine_->Fetch(handle, first.data(), false, nullptr).ok());
  ASSERT_TRUE(engine_->Fetch(handle, second.data(), false, nullptr).ok());
  ASSERT_TRUE(engine_->Wait(handle, nullptr).ok());
  EXPECT_EQ(first, source);
  EXPECT_EQ(second, source);
  engine_->Drop(handle);
}

TEST_F(FrameEngineTest, KeepsWhatThePlanKeepsAndOwesNothingForIt) {
  StartWithBothTiers();
  const Placement placement = Put(0, Pattern(1), Tier::kKeep);
  EXPECT_EQ(placement.handle, 0);
  EXPECT_EQ(placement.placed, Tier::kKeep);
  EXPECT_STREQ(placement.overflow_reason, "");
  EXPECT_EQ(engine_->stats().overflow_to_keep, 0);
  EXPECT_THAT(engine_->TakeReleasable(0, nullptr), IsEmpty());
  EXPECT_TRUE(engine_->Quiesce().ok());
}

TEST_F(FrameEngineTest, GoesToHostAndThenStaysWhenItsLeaseIsFullAndCountsBoth) {
  std::vector<EngineArena> arenas;
  arenas.push_back(Arena(Tier::kPeer, kSlot));
  arenas.push_back(Arena(Tier::kHost, kSlot));
  Start(std::move(arenas));
  const std::vector<char> sources[] = {Pattern(0), Pattern(1), Pattern(2)};
  const Placement a = Put(0, sources[0]);
  const Placement b = Put(1, sources[1]);
  const Placement c = Put(2, sources[2]);
  EXPECT_EQ(a.placed, Tier::kPeer);
  EXPECT_EQ(b.placed, Tier::kHost);
  EXPECT_STREQ(b.overflow_reason, "lease_full");
  EXPECT_EQ(c.placed, Tier::kKeep);
  EXPECT_EQ(c.handle, 0);
  EXPECT_STREQ(c.overflow_reason, "lease_full");
  EXPECT_EQ(engine_->stats().overflow_to_host, 1);
  EXPECT_EQ(engine_->stats().overflow_to_keep, 1);
  EXPECT_EQ(FetchAndWait(a.handle), sources[0]);
  EXPECT_EQ(FetchAndWait(b.handle), sources[1]);
  engine_->Drop(a.handle);
  engine_->Drop(b.handle);
  EXPECT_EQ(Put(3, sources[0]).placed, Tier::kPeer) << "freed slots are used again";
}

TEST_F(FrameEngineTest, SaysWhenALeaseHasTheBytesButNotInOnePiece) {
  std::vector<EngineArena> arenas;
  arenas.push_back(Arena(Tier::kPeer, 3 * kSlot));
  Start(std::move(arenas));
  const std::vector<char> source = Pattern(0);
  std::vector<StorageHandle> handles;
  handles.reserve(3);
  for (int i = 0; i < 3; ++i) handles.push_back(Put(i, source).handle);
  engine_->Drop(handles[0]);
  engine_->Drop(handles[2]);
  const Placement large = Put(4, Pattern(4, 2 * kSlot));
  EXPECT_EQ(large.placed, Tier::kKeep);
  EXPECT_STREQ(large.overflow_reason, "lease_fragmented");
}

TEST_F(FrameEngineTest, WithoutArenasKeepsEverythingAndSaysSo) {
  Start({});
  const Placement peer = Put(0, Pattern(0), Tier::kPeer);
  EXPECT_EQ(peer.placed, Tier::kKeep);
  EXPECT_STREQ(peer.overflow_reason, "no_lease");
  EXPECT_EQ(Put(1, Pattern(0), Tier::kHost).placed, Tier::kKeep);
  EXPECT_EQ(engine_->stats().overflow_to_keep, 2);
  EXPECT_THAT(engine_->TakeReleasable(0, nullptr), IsEmpty());
  EXPECT_THAT(engine_->NextToPrefetch(), IsEmpty());
  EXPECT_TRUE(engine_->Quiesce().ok());
}

TEST_F(FrameEngineTest, PlacesOnTheGpuThatThePlanNames) {
  std::vector<EngineArena> arenas;
  arenas.push_back(Arena(Tier::kPeer, kSlot, "SIM-test-1"));
  arenas.push_back(Arena(Tier::kPeer, kSlot, "SIM-test-2"));
  char* const second = arenas[1].memory->data();
  Start(std::move(arenas));
  const std::vector<char> source = Pattern(9);
  const Placement named = Put(0, source, Tier::kPeer, "SIM-test-2");
  engine_->TakeReleasable(0, nullptr);
  EXPECT_EQ(std::memcmp(second, source.data(), kSlot), 0);
  EXPECT_STREQ(Put(1, source, Tier::kPeer, "SIM-test-2").overflow_reason, "lease_full");
  EXPECT_STREQ(Put(2, source, Tier::kPeer, "SIM-test-7").overflow_reason, "no_lease");
  EXPECT_EQ(Put(3, source, Tier::kPeer, "").placed, Tier::kPeer) << "any peer";
  engine_->Drop(named.handle);
}

TEST_F(FrameEngineTest, UsesThePlansSlotWhenItIsFree) {
  std::vector<EngineArena> arenas;
  arenas.push_back(Arena(Tier::kPeer, 8 * kSlot));
  Start(std::move(arenas));
  const std::vector<char> source = Pattern(5);
  Put(0, source, Tier::kPeer, "", /*preferred=*/3 * kSlot);
  Put(1, Pattern(6), Tier::kPeer, "", /*preferred=*/3 * kSlot);  // Taken: goes elsewhere.
  engine_->TakeReleasable(0, nullptr);
  EXPECT_EQ(std::memcmp(last_arena_data_ + 3 * kSlot, source.data(), kSlot), 0);
}

TEST_F(FrameEngineTest, RefusesToQuiesceWhileStoragesAreLive) {
  StartWithBothTiers();
  const std::vector<char> source = Pattern(1);
  const StorageHandle a = Put(0, source).handle;
  const StorageHandle b = Put(1, source).handle;
  const absl::Status refused = engine_->Quiesce();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("2 storages"), HasSubstr("block 7")));
  engine_->Drop(a);
  engine_->Drop(b);
  EXPECT_TRUE(engine_->Quiesce().ok());
  EXPECT_EQ(engine_->stats().live_storages, 0);
}

TEST_F(FrameEngineTest, VerifyFindsOneFlippedBitInTheArenaAndNamesTheStorage) {
  FrameEngineOptions options;
  options.verify = true;
  std::vector<EngineArena> arenas;
  arenas.push_back(Arena(Tier::kHost, kMiB));
  Start(std::move(arenas), options);
  const std::vector<char> source = Pattern(1, 100000);
  const StorageHandle handle = Put(42, source, Tier::kHost).handle;
  EXPECT_EQ(FetchAndWait(handle), source);
  last_arena_data_[77777] ^= 1;
  std::vector<char> back(source.size());
  ASSERT_TRUE(engine_->Fetch(handle, back.data(), false, nullptr).ok());
  const absl::Status found = engine_->Wait(handle, nullptr);
  EXPECT_EQ(found.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(found.message()),
              AllOf(HasSubstr("storage 42 of block 7"), HasSubstr("tier host")));
  engine_->Drop(handle);
}

TEST_F(FrameEngineTest, KnowsOnlyTheHandlesThatItGave) {
  StartWithBothTiers();
  char buffer[kSlot];
  for (const StorageHandle unknown : {StorageHandle{0}, StorageHandle{99}}) {
    EXPECT_EQ(engine_->Fetch(unknown, buffer, false, nullptr).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(engine_->Wait(unknown, nullptr).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(engine_->SizeOf(unknown), 0);
    engine_->Drop(unknown);
  }
  const std::vector<char> source = Pattern(1);
  const StorageHandle handle = Put(0, source).handle;
  EXPECT_EQ(engine_->SizeOf(handle), kSlot);
  engine_->Drop(handle);
  engine_->Drop(handle);
  EXPECT_EQ(engine_->Fetch(handle, buffer, false, nullptr).code(), absl::StatusCode::kNotFound);
  EXPECT_NE(Put(0, source).handle, handle) << "handles are never used twice";
}

TEST_F(FrameEngineTest, RefusesToWaitForAReloadThatWasNeverStarted) {
  StartWithBothTiers();
  const std::vector<char> source = Pattern(1);
  const StorageHandle handle = Put(3, source).handle;
  const absl::Status refused = engine_->Wait(handle, nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("storage 3 of block 7"));
  EXPECT_EQ(engine_->Fetch(handle, nullptr, false, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  engine_->Drop(handle);
}

TEST_F(FrameEngineTest, RefusesPutsThatMakeNoSense) {
  StartWithBothTiers();
  char byte = 0;
  EXPECT_EQ(engine_->Put({}, &byte, 0, Tier::kPeer, "", -1, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->Put({}, &byte, -1, Tier::kPeer, "", -1, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->Put({}, nullptr, 1, Tier::kPeer, "", -1, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(FrameEngineTest, RefusesOptionsThatMakeNoSense) {
  const auto code = [this](auto change, std::vector<EngineArena> arenas = {}) {
    FrameEngineOptions options;
    change(&options);
    return FrameEngine::Create(device_.get(), std::move(arenas), options).status().code();
  };
  const auto nothing = [](auto*) {};
  EXPECT_EQ(code([](auto* o) { o->stash_limit = -1; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto* o) { o->prefetch_limit = -1; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto* o) { o->chaos.longest_delay = -absl::Seconds(1); }),
            absl::StatusCode::kInvalidArgument);
  std::vector<EngineArena> keep;
  keep.push_back(Arena(Tier::kKeep, kSlot));
  EXPECT_EQ(code(nothing, std::move(keep)), absl::StatusCode::kInvalidArgument);
  std::vector<EngineArena> empty(1);
  EXPECT_EQ(code(nothing, std::move(empty)), absl::StatusCode::kInvalidArgument);
}

TEST_F(FrameEngineTest, CountsBytesCopiesAndGauges) {
  StartWithBothTiers();
  const std::vector<char> source = Pattern(1, 1000);
  const StorageHandle peer = Put(0, source, Tier::kPeer).handle;
  const StorageHandle host = Put(1, source, Tier::kHost).handle;
  Put(2, source, Tier::kKeep);
  EngineStats stats = engine_->stats();
  EXPECT_THAT(stats.puts, ElementsAre(1, 1, 1));
  EXPECT_THAT(stats.bytes_out, ElementsAre(0, 1000, 1000));
  EXPECT_THAT(stats.arena_used, ElementsAre(0, 1024, 1024));
  EXPECT_THAT(stats.arena_capacity, ElementsAre(0, kMiB, kMiB));
  EXPECT_EQ(stats.live_storages, 2);
  EXPECT_EQ(stats.stash_bytes, 2000);
  engine_->TakeReleasable(0, nullptr);
  EXPECT_EQ(engine_->stats().stash_bytes, 0);
  FetchAndWait(peer);
  EXPECT_THAT(engine_->stats().bytes_in, ElementsAre(0, 1000, 0));
  engine_->Drop(peer);
  engine_->Drop(host);
  stats = engine_->stats();
  EXPECT_THAT(stats.arena_used, ElementsAre(0, 0, 0));
  EXPECT_EQ(stats.live_storages, 0);
}

// A step of a training program from several threads at once, as micro-batches of a pipeline are.
TEST_F(FrameEngineTest, ServesSeveralThreads) {
  FrameEngineOptions options;
  options.stash_limit = 4 * kSlot;
  options.verify = true;
  StartWithBothTiers(options);
  for (int t = 0; t < 4; ++t) sources_.push_back(Pattern(t));
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<bool> stop{false};
  // Sources live as long as the test, so one thread may take every release.
  std::thread releaser([&] {
    while (!stop) engine_->TakeReleasable(2 * kSlot, nullptr);
  });
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const std::vector<char>& source = sources_[t];
      for (int i = 0; i < 200; ++i) {
        StorageKey key;
        key.micro_batch = t;
        key.ordinal = i;
        const auto put = engine_->Put(key, source.data(), kSlot,
                                      i % 2 == 0 ? Tier::kPeer : Tier::kHost, "", -1, nullptr);
        ASSERT_TRUE(put.ok());
        if (put->handle == 0) continue;
        if (i % 5 != 0) {
          EXPECT_EQ(FetchAndWait(put->handle), source);
        }
        engine_->NextToPrefetch();
        engine_->stats();
        engine_->Drop(put->handle);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  releaser.join();
  EXPECT_TRUE(engine_->Quiesce().ok());
}

}  // namespace
}  // namespace hyperframes
