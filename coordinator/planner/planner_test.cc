#include "coordinator/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "coordinator/planner/plan_checks.h"
#include "coordinator/planner/test_problems.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string Refusal(const PlanProblem& problem, absl::StatusCode code) {
  const auto plan = MakeGreedyPlanner()->Plan(problem);
  EXPECT_EQ(plan.status().code(), code) << plan.status();
  EXPECT_LT(plan.status().message().size(), 700u);
  return std::string(plan.status().message());
}

// "... that works is 13.25MiB (13893632 bytes)".
Bytes SmallestNamed(const std::string& message) {
  const size_t works = message.find("that works is ");
  const size_t open = message.find('(', works);
  Bytes bytes = -1;
  if (works == std::string::npos ||
      !absl::SimpleAtoi(message.substr(open + 1, message.find(' ', open) - open - 1), &bytes)) {
    ADD_FAILURE() << "names no smallest budget: " << message;
  }
  return bytes;
}

Bytes Moved(const RankPlan& rank) { return rank.bytes_by_tier[1] + rank.bytes_by_tier[2]; }

TEST(GreedyPlanner, KeepsEverythingThatFitsAndSaysSo) {
  const PlanProblem problem = Transformer(4, 8);
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  EXPECT_EQ(Moved(plan.ranks[0]), 0);
  EXPECT_EQ(plan.ranks[0].recomputed_bytes, 0);
  EXPECT_EQ(plan.ranks[0].predicted_activation_peak, AllActivations(problem));
  EXPECT_EQ(plan.ranks[0].activation_bytes, AllActivations(problem));
  EXPECT_THAT(plan.advice, HasSubstr("everything fits"));
  EXPECT_THAT(plan.ranks[0].blocks[1].reason, HasSubstr("kept"));
  EXPECT_THAT(plan.id, MatchesRegex("[0-9a-f]{16}"));
}

TEST(GreedyPlanner, StaysUnderFortyPercentOfTheActivations) {
  PlanProblem problem = Transformer(12, 12);
  problem.ranks[0].activation_budget = AllActivations(problem) * 2 / 5;
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  EXPECT_GT(Moved(plan.ranks[0]), 0);
  EXPECT_GT(plan.ranks[0].stash_limit, 0);
  EXPECT_GT(plan.ranks[0].prefetch_limit, 0);
  // A fast peer costs far less than a second forward.
  EXPECT_LT(plan.ranks[0].predicted_step, absl::Milliseconds(12 * 24 + 4) * 1.15);
}

TEST(GreedyPlanner, GivesAReasonWithNumbersForEveryChoice) {
  PlanProblem problem = Transformer(8, 8);
  problem.ranks[0].activation_budget = AllActivations(problem) / 2;
  std::string moved;
  const FramePlan with_lenders = MustPlan(problem);
  for (const BlockDecision& block : with_lenders.ranks[0].blocks) {
    if (block.reason.rfind("moved", 0) == 0) moved = block.reason;
  }
  EXPECT_THAT(moved,
              MatchesRegex("moved .*MiB to SIM-a-1.*[mu]s of copy out and .*[mu]s back, .*ms of "
                           "compute pass.*recompute would cost 8ms.*"));
  problem.devices[1].lendable_bytes = 0;
  problem.devices[2].lendable_bytes = 0;
  std::string recomputed;
  const FramePlan alone = MustPlan(problem);
  for (const BlockDecision& block : alone.ranks[0].blocks) {
    if (block.policy == Policy::kRecompute) recomputed = block.reason;
  }
  EXPECT_THAT(recomputed, MatchesRegex("recomputed .*MiB in 8ms .no lender has room.*"));
}

TEST(GreedyPlanner, RecomputesWhenCopiesAreSlowAndMovesWhenRecomputeIs) {
  PlanProblem problem = Transformer(8, 8);
  problem.ranks[0].activation_budget = AllActivations(problem) / 2;
  for (LinkProfile& link : problem.links) link.bytes_per_second = 1e8;
  const FramePlan slow_links = MustPlan(problem);
  EXPECT_GT(slow_links.ranks[0].recomputed_bytes, Moved(slow_links.ranks[0]));
  for (LinkProfile& link : problem.links) link.bytes_per_second = 100e9;
  const FramePlan fast_links = MustPlan(problem);
  EXPECT_EQ(fast_links.ranks[0].recomputed_bytes, 0);
}

TEST(GreedyPlanner, ChargesForWhatCopiesCostTheComputeOfTheRank) {
  PlanProblem problem = Transformer(8, 8);
  problem.ranks[0].activation_budget = AllActivations(problem) / 2;
  problem.forbidden_tiers = {Tier::kPeer};
  problem.forbid_recompute = true;
  for (LinkProfile& link : problem.links) {
    link.compute_slowdown = 0;
    link.bytes_per_second = 40e9;  // Compute never waits for a copy.
  }
  const FramePlan free = MustPlan(problem);
  problem.ranks[0].peer_slowdown = {0.5, 0.5};
  const FramePlan other_tier = MustPlan(problem);
  EXPECT_EQ(other_tier.ranks[0].predicted_step, free.ranks[0].predicted_step);
  EXPECT_NE(other_tier.id, free.id);
  problem.ranks[0].host_slowdown = {0.08, 0.04};
  const FramePlan priced = MustPlan(problem);
  const absl::Duration more = priced.ranks[0].predicted_step - free.ranks[0].predicted_step;
  // 8 % of the time that copies out take, and 4 % of the time back.
  const double copies_s = static_cast<double>(Moved(priced.ranks[0])) / 40e9;
  EXPECT_NEAR(absl::ToDoubleSeconds(more), 0.12 * copies_s, 0.012 * copies_s);
  // A link that says more of itself binds.
  for (LinkProfile& link : problem.links) link.compute_slowdown = 0.3;
  EXPECT_GT(MustPlan(problem).ranks[0].predicted_step, priced.ranks[0].predicted_step);
}

TEST(GreedyPlanner, RefusesASlowdownThatIsNoShare) {
  PlanProblem problem = Transformer(2, 2);
  problem.ranks[0].peer_slowdown.out = 1.5;
  EXPECT_THAT(Refusal(problem, absl::StatusCode::kInvalidArgument),
              HasSubstr("ranks[0].peer_slowdown.out is 1.5; it is a share from 0 to 1"));
  problem.ranks[0].peer_slowdown.out = 0;
  problem.ranks[0].host_slowdown.in = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Refusal(problem, absl::StatusCode::kInvalidArgument),
              HasSubstr("ranks[0].host_slowdown.in is nan"));
}

TEST(GreedyPlanner, ObeysForbiddenTiersAndForbiddenRecompute) {
  PlanProblem problem = Transformer(8, 8);
  problem.ranks[0].activation_budget = AllActivations(problem) / 2;
  problem.forbidden_tiers = {Tier::kPeer};
  EXPECT_EQ(MustPlan(problem).ranks[0].bytes_by_tier[1], 0);
  problem.forbidden_tiers = {Tier::kPeer, Tier::kHost};
  EXPECT_EQ(Moved(MustPlan(problem).ranks[0]), 0);
  problem.forbidden_tiers = {};
  problem.forbid_recompute = true;
  EXPECT_EQ(MustPlan(problem).ranks[0].recomputed_bytes, 0);
}

TEST(GreedyPlanner, NeverPlacesWhatIsUnmovableOrUnstable) {
  PlanProblem problem = Transformer(8, 8);
  for (BlockProfile& block : problem.ranks[0].blocks) {
    for (StorageProfile& storage : block.storages) {
      storage.movable = storage.ordinal % 3 != 1;
      storage.unmovable_reason = storage.movable ? "" : "a parameter";
      storage.stable = storage.ordinal % 3 != 2;
    }
  }
  problem.ranks[0].activation_budget = AllActivations(problem) * 6 / 10;
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  EXPECT_LT(plan.ranks[0].blocks[1].confidence, 1.0);
  EXPECT_THAT(plan.ranks[0].blocks[1].reason, HasSubstr("cannot move (a parameter)"));
  EXPECT_THAT(plan.ranks[0].blocks[1].reason, HasSubstr("differed between two profiled steps"));
}

TEST(GreedyPlanner, PeakIsMonotoneInTheBudgetAndNeverAboveIt) {
  for (const int storages : {1, 4, 9, 15}) {
    PlanProblem problem = Transformer(10, storages);
    const Bytes all = AllActivations(problem);
    problem.ranks[0].activation_budget = 0;
    const Bytes least = SmallestNamed(Refusal(problem, absl::StatusCode::kResourceExhausted));
    Bytes last_peak = 0;
    absl::Duration last_step = absl::InfiniteDuration();
    for (int step = 0; step <= 10; ++step) {
      problem.ranks[0].activation_budget = least + (all - least) * step / 10;
      const FramePlan plan = MustPlan(problem);
      ExpectSound(problem, plan);
      EXPECT_GE(plan.ranks[0].predicted_activation_peak, last_peak) << storages << " " << step;
      EXPECT_LE(plan.ranks[0].predicted_step, last_step + absl::Microseconds(1));
      last_peak = plan.ranks[0].predicted_activation_peak;
      last_step = plan.ranks[0].predicted_step;
    }
    EXPECT_EQ(last_peak, all);
  }
}

TEST(GreedyPlanner, ZeroMeansNoneAndTheSmallestBudgetNamedReallyIs) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    PlanProblem problem = seed == 0 ? Transformer(6, 7) : Tiny(seed, 5);
    problem.ranks[0].activation_budget = 0;
    const std::string message = Refusal(problem, absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(message, HasSubstr("SIM-a-0"));
    const Bytes least = SmallestNamed(message);
    problem.ranks[0].activation_budget = least;
    ExpectSound(problem, MustPlan(problem));
    problem.ranks[0].activation_budget = least - 1;
    EXPECT_EQ(SmallestNamed(Refusal(problem, absl::StatusCode::kResourceExhausted)), least);
  }
}

TEST(GreedyPlanner, TotalBudgetCountsResidentBytesAndNamesTheSmallestToo) {
  PlanProblem problem = Transformer(6, 7);
  problem.ranks[0].budget = 0;
  const std::string message = Refusal(problem, absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(message, HasSubstr("1GiB weights, gradients and optimizer"));
  const Bytes least = SmallestNamed(message);
  EXPECT_GT(least, kGiB);
  problem.ranks[0].budget = least;
  const FramePlan plan = MustPlan(problem);
  EXPECT_LE(plan.ranks[0].predicted_peak - problem.ranks[0].overhead_bytes, least);
  problem.ranks[0].budget = least - 1;
  Refusal(problem, absl::StatusCode::kResourceExhausted);
}

TEST(GreedyPlanner, SaysWhenNoBudgetWouldHelp) {
  PlanProblem problem = Transformer(6, 7);
  problem.devices[0].usable_bytes = kGiB + 70 * kMiB;
  EXPECT_THAT(Refusal(problem, absl::StatusCode::kResourceExhausted), HasSubstr("no budget works"));
  problem.ranks[0].budget = 60 * kGiB;  // More than the card: the card binds.
  EXPECT_THAT(Refusal(problem, absl::StatusCode::kResourceExhausted), HasSubstr("no budget works"));
  problem.devices[0].usable_bytes = kGiB;
  EXPECT_THAT(Refusal(problem, absl::StatusCode::kResourceExhausted), HasSubstr("ZeRO or LoRA"));
}

TEST(GreedyPlanner, RefusesContradictionsByFieldAndValue) {
  const auto refusal = [](void (*spoil)(PlanProblem*)) {
    PlanProblem problem = Transformer(2, 3);
    spoil(&problem);
    return Refusal(problem, absl::StatusCode::kInvalidArgument);
  };
  EXPECT_THAT(refusal([](PlanProblem* p) { p->ranks[0].budget = -2; }),
              HasSubstr("ranks[0].budget is -2"));
  EXPECT_THAT(refusal([](PlanProblem* p) {
                p->ranks[0].budget = 1;
                p->ranks[0].activation_budget = 1;
              }),
              HasSubstr("two budgets"));
  EXPECT_THAT(refusal([](PlanProblem* p) { p->ranks[0].blocks[1].storages[2].bytes = -5; }),
              HasSubstr("ranks[0].blocks[1].storages[2].bytes is -5"));
  EXPECT_THAT(refusal([](PlanProblem* p) { p->ranks[0].blocks[1].name = "loss"; }),
              HasSubstr("\"loss\" is there twice"));
  EXPECT_THAT(refusal([](PlanProblem* p) { p->ranks[0].gpu = "host:a"; }),
              HasSubstr("\"host:a\" is no GPU"));
  EXPECT_THAT(refusal([](PlanProblem* p) { p->devices[1].uuid = "SIM-a-0"; }),
              HasSubstr("devices[1].uuid"));
  EXPECT_THAT(refusal([](PlanProblem* p) { p->links[0].to = "SIM-z-9"; }),
              HasSubstr("links[0].to \"SIM-z-9\""));
  EXPECT_THAT(refusal([](PlanProblem* p) {
                p->links[0].bytes_per_second = std::numeric_limits<double>::quiet_NaN();
              }),
              HasSubstr("links[0].bytes_per_second"));
  EXPECT_THAT(refusal([](PlanProblem* p) { p->ranks[0].blocks[0].forward = -absl::Seconds(1); }),
              HasSubstr("ranks[0].blocks[0].forward"));
  EXPECT_THAT(
      refusal([](PlanProblem* p) {
        p->ranks[0].blocks[1].selective = {{3, -1, absl::ZeroDuration(), false, true, false, "op"}};
      }),
      HasSubstr("ranks[0].blocks[1].selective[0].bytes is -1"));
  EXPECT_THAT(refusal([](PlanProblem* p) { p->forbidden_tiers = {Tier::kKeep}; }),
              HasSubstr("KEEP"));
  EXPECT_THAT(refusal([](PlanProblem* p) { p->ranks.clear(); }), HasSubstr("ranks is empty"));
}

TEST(GreedyPlanner, SameProblemSamePlanInAnyOrderOfDevices) {
  PlanProblem problem = Transformer(10, 9);
  problem.devices.push_back({"SIM-a-2", "a", false, 64 * kGiB, 200 * kMiB});
  problem.links.push_back({"SIM-a-0", "SIM-a-2", 20e9, absl::Microseconds(10), "simulated", "", 0});
  problem.ranks[0].activation_budget = AllActivations(problem) / 3;
  const FramePlan first = MustPlan(problem);
  EXPECT_EQ(MustPlan(problem).id, first.id);
  std::reverse(problem.devices.begin(), problem.devices.end());
  std::reverse(problem.links.begin(), problem.links.end());
  const FramePlan second = MustPlan(problem);
  EXPECT_EQ(second.id, first.id);
  EXPECT_EQ(second.advice, first.advice);
  EXPECT_EQ(second.ranks[0].blocks[3].reason, first.ranks[0].blocks[3].reason);
  problem.ranks[0].activation_budget -= 4096;
  EXPECT_NE(MustPlan(problem).id, first.id);
}

TEST(GreedyPlanner, LaterRanksSeeWhatEarlierOnesLeased) {
  PlanProblem problem = Transformer(6, 8);
  problem.ranks[0].activation_budget = AllActivations(problem) / 2;
  problem.ranks.push_back(problem.ranks[0]);
  problem.ranks[1].rank = 1;
  problem.ranks[1].gpu = "SIM-a-2";
  problem.devices.push_back({"SIM-a-2", "a", false, 64 * kGiB, 0});
  problem.devices[1].lendable_bytes = 300 * kMiB;
  problem.devices[2].lendable_bytes = 100 * kMiB;
  for (const char* lender : {"SIM-a-1", "host:a"}) {
    problem.links.push_back({"SIM-a-2", lender, 20e9, absl::Microseconds(10), "simulated", "", 0});
  }
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  EXPECT_GT(plan.water_level_max_over_mean, 1.0);
}

TEST(GreedyPlanner, AGpuThatComputesLendsOnlyWhatItsOwnPlanLeaves) {
  PlanProblem problem = Transformer(6, 8);
  problem.ranks.push_back(problem.ranks[0]);
  problem.ranks[1].rank = 1;
  problem.ranks[1].gpu = "SIM-a-1";
  problem.ranks[1].activation_budget = AllActivations(problem) / 2;
  problem.devices[0].usable_bytes = 2 * kGiB;
  problem.devices[0].lendable_bytes = 2 * kGiB;  // More than it will have left.
  problem.devices[2].lendable_bytes = 0;
  const FramePlan plan = MustPlan(problem);
  Bytes leased = 0;
  for (const LeaseNeed& lease : plan.ranks[1].leases) leased += lease.bytes;
  EXPECT_GT(leased, 0);
  EXPECT_LE(leased + plan.ranks[0].predicted_peak, 2 * kGiB);
}

TEST(GreedyPlanner, AdvisesInThreeLevelsAndNamesSlowLinks) {
  PlanProblem problem = Transformer(6, 8);
  problem.ranks[0].activation_budget = AllActivations(problem) / 2;
  const Bytes all = AllActivations(problem);
  problem.ranks[0].resident_bytes = all / 2;
  EXPECT_THAT(MustPlan(problem).advice, HasSubstr("Worth it"));
  problem.ranks[0].resident_bytes = all;
  EXPECT_THAT(MustPlan(problem).advice, HasSubstr("Modest"));
  problem.ranks[0].resident_bytes = 3 * all;
  problem.links[0].kind = "nvlink";
  problem.links[0].bytes_per_second = 10e9;
  const std::string advice = MustPlan(problem).advice;
  EXPECT_THAT(advice, HasSubstr("Small"));
  EXPECT_THAT(advice, HasSubstr("A >= 2P"));
  EXPECT_THAT(advice, HasSubstr("under a tenth of its promise of 150GB/s"));
}

TEST(GreedyPlanner, LevelFirstIsNoLessLevel) {
  PlanProblem problem = Transformer(10, 8);
  problem.devices[0].usable_bytes = 2 * kGiB;
  problem.devices[1].usable_bytes = 2 * kGiB;
  problem.devices[1].lendable_bytes = kGiB;
  const FramePlan fast = MustPlan(problem);
  problem.level_first = true;
  const FramePlan level = MustPlan(problem);
  ExpectSound(problem, level);
  EXPECT_LT(level.water_level_max_over_mean, fast.water_level_max_over_mean);
  EXPECT_LE(level.ranks[0].predicted_peak, fast.ranks[0].predicted_peak);
}

TEST(GreedyPlanner, PlansAHundredBlocksInAFractionOfASecond) {
  for (const int share : {3, 5, 8}) {
    PlanProblem problem = Transformer(98, 15);
    problem.ranks[0].activation_budget = AllActivations(problem) * share / 10;
    // CPU time: other tests may run beside this one.
    const std::clock_t start = std::clock();
    const FramePlan plan = MustPlan(problem);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    std::printf("100 blocks x 15 storages at %d0 %%: planned in %.0f ms, step %.1f ms of %.1f\n",
                share, seconds * 1e3, absl::ToDoubleMilliseconds(plan.ranks[0].predicted_step),
                98 * 24 + 3.3);
    ExpectSound(problem, plan);
  }
}

}  // namespace
}  // namespace hyperframes
