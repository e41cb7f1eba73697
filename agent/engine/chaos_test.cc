// Chaos mode on real lanes, threads' and GPUs': copies are delayed at random and freed slots
// poisoned, and the program reuses memory as soon as it may. A missing event shows as wrong bytes;
// with every event in place ten thousand puts and fetches show none. Without a GPU the CUDA half is
// skipped, and counted as skipped.
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/engine/chaos_program.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

constexpr Bytes kBytes = 2048;

// A program whose frames go to both tiers, on lanes with `chaos`: in company of up to 16, or, where
// the limits leave no room for that, the larger half of them alone.
std::unique_ptr<ChaosProgram> StartProgram(ConformanceBackend* backend, const ChaosOptions& chaos,
                                           bool in_company) {
  FrameEngineOptions options;
  options.stash_limit = (in_company ? 64 : 4) * kBytes;
  options.prefetch_limit = options.stash_limit;
  options.chaos = chaos;
  std::vector<EngineArena> arenas;
  for (const Tier tier : {Tier::kPeer, Tier::kHost}) {
    EngineArena arena;
    arena.lease_id = TierName(tier);
    arena.tier = tier;
    arena.memory =
        backend->Borrow(tier == Tier::kPeer ? backend->peer() : backend->host(), 16 * kBytes);
    arenas.push_back(std::move(arena));
  }
  return std::make_unique<ChaosProgram>(backend, std::move(arenas), options, kBytes);
}

struct LaneCase {
  Direction direction;
  Tier tier;
};

using ChaosLaneCase = std::tuple<std::string, LaneCase, /*in_company*/ bool>;

class ChaosLaneTest : public testing::TestWithParam<ChaosLaneCase> {};

TEST_P(ChaosLaneTest, FindsTheEventThatIsMissingOnPurpose) {
#ifdef HF_TSAN
  GTEST_SKIP() << "the planted fault is a data race, which ThreadSanitizer reports by itself; "
                  "frame_engine_order_test plants it on one thread";
#endif
  const auto& [name, lane, in_company] = GetParam();
  auto opened = ConformanceBackend::Open(name);
  if (!opened.ok()) GTEST_SKIP() << opened.status();
  const auto backend = std::move(opened).value();
  ChaosOptions chaos;
  chaos.enabled = true;
  // Long against the microseconds that the program needs to overwrite a source or start a reload.
  chaos.longest_delay = absl::Milliseconds(10);
  chaos.skip_event = true;
  chaos.skip_direction = lane.direction;
  chaos.skip_tier = lane.tier;
  const auto program = StartProgram(backend.get(), chaos, in_company);
  for (int round = 0; round < 200 && program->wrong_storages() == 0; ++round) {
    for (int i = 0; i < (in_company ? 4 : 1); ++i) program->Put(lane.tier, kBytes);
    if (lane.direction == Direction::kOut) program->Release(0);
    if (in_company) program->ConsumeAhead();
    while (program->live() > 0) program->Consume(0);
    program->Release(0);
  }
  EXPECT_GT(program->wrong_storages(), 0);
}

INSTANTIATE_TEST_SUITE_P(EveryLane, ChaosLaneTest,
                         testing::Combine(testing::Values("host", "cuda"),
                                          testing::Values(LaneCase{Direction::kOut, Tier::kPeer},
                                                          LaneCase{Direction::kOut, Tier::kHost},
                                                          LaneCase{Direction::kIn, Tier::kPeer},
                                                          LaneCase{Direction::kIn, Tier::kHost}),
                                          testing::Bool()),
                         [](const testing::TestParamInfo<ChaosLaneTest::ParamType>& info) {
                           const LaneCase lane = std::get<1>(info.param);
                           return std::get<0>(info.param) +
                                  (lane.direction == Direction::kOut ? "Out" : "In") +
                                  (lane.tier == Tier::kPeer ? "Peer" : "Host") +
                                  (std::get<2>(info.param) ? "InCompany" : "Alone");
                         });

class ChaosTest : public testing::TestWithParam<std::tuple<std::string, /*in_company*/ bool>> {};

TEST_P(ChaosTest, FindsNothingInTenThousandPutsAndFetches) {
  const auto& [name, in_company] = GetParam();
  auto opened = ConformanceBackend::Open(name);
  if (!opened.ok()) GTEST_SKIP() << opened.status();
  const auto backend = std::move(opened).value();
  ChaosOptions chaos;
  chaos.enabled = true;
  chaos.longest_delay = absl::Microseconds(60);
  const auto program = StartProgram(backend.get(), chaos, in_company);
  std::mt19937 random(7);
  while (program->moved() < 10000) {
    const Tier tier = random() % 2 == 0 ? Tier::kPeer : Tier::kHost;
    for (size_t count = in_company ? random() % 6 : 1; count > 0; --count) {
      program->Put(tier, 1 + static_cast<Bytes>(random() % kBytes));
    }
    if (random() % 2 == 0) program->Release(random() % 2 == 0 ? 0 : 2 * kBytes);
    if (in_company && random() % 3 == 0) program->ConsumeAhead();
    while (program->live() > random() % 24) program->Consume(random() % program->live());
  }
  program->Release(0);
  while (program->live() > 0) program->Consume(0);
  EXPECT_EQ(program->wrong_storages(), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, ChaosTest,
                         testing::Combine(testing::Values("host", "cuda"), testing::Bool()),
                         [](const testing::TestParamInfo<ChaosTest::ParamType>& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) ? "InCompany" : "Alone");
                         });

}  // namespace
}  // namespace hyperframes
