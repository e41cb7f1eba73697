#include "coordinator/planner/rank_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include "coordinator/planner/problem_check.h"
#include "coordinator/planner/rank_model.h"
#include "coordinator/planner/rank_options.h"
#include "coordinator/planner/test_problems.h"

namespace hyperframes {
namespace {

// Every choice for one block: each storage in each place, saved or recomputed.
std::vector<Option> EveryOption(const RankModel& model, const ModelBlock& block) {
  std::vector<Option> options;
  const int places = static_cast<int>(model.paths.size()) + 1;
  const int ranked = static_cast<int>(block.selective_s.size());
  // -1: saved; 0: recomputed; k: selective with the first k.
  for (int policy = -1; policy < std::max(1, ranked); ++policy) {
    if (policy >= 0 && !block.can_recompute) break;
    const BlockChoice blank{policy >= 0, std::vector<int>(block.storages.size(), kKept),
                            std::max(0, policy)};
    int combinations = 1;
    for (size_t s = 0; s < block.storages.size(); ++s) combinations *= places;
    for (int c = 0; c < combinations; ++c) {
      BlockChoice choice = blank;
      int rest = c;
      bool legal = true;
      for (size_t s = 0; s < block.storages.size(); ++s, rest /= places) {
        const int place = rest % places - 1;
        const bool may_move = block.storages[s].can_move && Waits(block, blank, s);
        legal = legal && (place == kKept || may_move);
        choice.where[s] = static_cast<int>(place);
      }
      if (legal) options.push_back(MakeOption(model, block, std::move(choice)));
    }
  }
  return options;
}

// Fastest step over all choices and a grid of window sizes; the least peak as well.
struct Optimum {
  double step_s = -1;  // -1: nothing fits.
  Bytes least_peak = kNoLimit;
};

class Exhaustive {
 public:
  explicit Exhaustive(const RankModel& model) : model_(model), loads_(model.blocks.size()) {
    for (const ModelBlock& block : model.blocks) options_.push_back(EveryOption(model, block));
    std::set<Bytes> sizes = {0};
    for (const ModelBlock& block : model.blocks) {
      sizes.insert(block.bytes);
      for (const ModelStorage& storage : block.storages) {
        sizes.insert({storage.bytes, 2 * storage.bytes});
      }
    }
    windows_.assign(sizes.begin(), sizes.end());
    // Six windows of the whole range keep the count in bounds.
    std::vector<Bytes> few;
    for (size_t i = 0; i < 6; ++i) few.push_back(windows_[i * (windows_.size() - 1) / 5]);
    windows_ = few;
  }

  Optimum Solve() {
    used_.assign(model_.paths.size(), 0);
    Descend(0);
    return best_;
  }

 private:
  void Descend(size_t block) {
    if (block == options_.size()) return Price();
    for (const Option& option : options_[block]) {
      bool room = true;
      for (size_t p = 0; p < used_.size(); ++p) {
        used_[p] += option.uses[p];
        room = room && used_[p] <= model_.paths[p].room;
      }
      loads_[block] = option.load;
      if (room) Descend(block + 1);
      for (size_t p = 0; p < used_.size(); ++p) used_[p] -= option.uses[p];
    }
  }

  void Price() {
    for (const Bytes stash : windows_) {
      for (const Bytes prefetch : windows_) {
        StepResult result;
        const CopyLimits limits{stash, prefetch, false};
        SimulateBytes(model_, loads_, limits, &result);
        best_.least_peak = std::min(best_.least_peak, result.activation_peak);
        if (result.excess > 0) break;  // A larger window only holds more.
        SimulateSeconds(model_, loads_, limits, &result);
        if (best_.step_s < 0 || result.step_s < best_.step_s) best_.step_s = result.step_s;
      }
    }
  }

  const RankModel& model_;
  std::vector<std::vector<Option>> options_;
  std::vector<BlockLoad> loads_;
  std::vector<Bytes> windows_;
  std::vector<Bytes> used_;
  Optimum best_;
};

Bytes FloorPeak(const RankModel& model) {
  Bytes least = kNoLimit;
  for (const RankSolution& floor : FloorSolutions(model, WhenRunAgain::kAllStays)) {
    least = std::min(least, floor.result.activation_peak);
  }
  return least;
}

TEST(RankSearch, StaysNearTheOptimumAndNeverOverTheLimit) {
  double worst = 0;
  double sum = 0;
  int solved = 0;
  int exact = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    const PlanProblem problem = InCanonicalOrder(Tiny(seed, 5 + static_cast<int>(seed % 2)));
    RankModel model = BuildRankModel(problem, 0, Taken());
    const Bytes least = FloorPeak(model);
    const Bytes most = KeepAll(model).result.activation_peak;
    for (const int quarter : {0, 1, 2, 3}) {
      model.activation_limit = least + (most - least) * quarter / 4;
      const Optimum optimum = Exhaustive(model).Solve();
      const absl::optional<RankSolution> found = SearchRank(model);
      ASSERT_TRUE(found.has_value()) << "seed " << seed << " quarter " << quarter;
      EXPECT_LE(found->result.activation_peak, model.activation_limit);
      if (optimum.step_s < 0) continue;  // Only windows beyond the grid fit.
      const double gap = found->result.step_s / optimum.step_s - 1;
      worst = std::max(worst, gap);
      sum += std::max(0.0, gap);
      ++solved;
      if (gap < 1e-9) ++exact;
    }
  }
  std::printf("%d problems: %d as fast as the optimum, worst gap %.2f %%, mean %.2f %%\n", solved,
              exact, worst * 100, sum / solved * 100);
  EXPECT_GT(solved, 200);
  // At the very floor several storages must change places together to get better: the worst gaps
  // are there.
  EXPECT_LT(worst, 0.45);
  EXPECT_LT(sum / solved, 0.01);
  EXPECT_GT(exact, solved * 3 / 4);
}

TEST(RankSearch, StaysNearTheOptimumWhereOperatorsMayBeSavedAlone) {
  double worst = 0;
  double sum = 0;
  int solved = 0;
  int exact = 0;
  int selective = 0;
  for (unsigned seed = 1; seed <= 30; ++seed) {
    const PlanProblem problem = InCanonicalOrder(TinySelective(seed, 3));
    RankModel model = BuildRankModel(problem, 0, Taken());
    const Bytes least = FloorPeak(model);
    const Bytes most = KeepAll(model).result.activation_peak;
    for (const int quarter : {1, 2}) {
      model.activation_limit = least + (most - least) * quarter / 4;
      const Optimum optimum = Exhaustive(model).Solve();
      const absl::optional<RankSolution> found = SearchRank(model);
      ASSERT_TRUE(found.has_value()) << "seed " << seed << " quarter " << quarter;
      EXPECT_LE(found->result.activation_peak, model.activation_limit);
      for (const BlockChoice& choice : found->choices) selective += choice.selected > 0;
      if (optimum.step_s < 0) continue;
      const double gap = found->result.step_s / optimum.step_s - 1;
      worst = std::max(worst, gap);
      sum += std::max(0.0, gap);
      ++solved;
      if (gap < 1e-9) ++exact;
    }
  }
  std::printf("%d problems, %d selective blocks: %d as fast as the optimum, worst gap %.2f %%\n",
              solved, selective, exact, worst * 100);
  EXPECT_GT(solved, 40);
  EXPECT_GT(selective, 10);
  EXPECT_LT(worst, 0.45);
  EXPECT_LT(sum / solved, 0.02);
}

TEST(RankSearch, NothingHoldsLessThanTheFloor) {
  int equal = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    const PlanProblem problem = InCanonicalOrder(Tiny(seed, 3));
    RankModel model = BuildRankModel(problem, 0, Taken());
    const Bytes floor = FloorPeak(model);
    model.activation_limit = 0;  // Only peaks matter here.
    const Bytes least = Exhaustive(model).Solve().least_peak;
    EXPECT_GE(floor, least);
    EXPECT_LE(static_cast<double>(floor), 1.25 * static_cast<double>(least)) << "seed " << seed;
    if (floor == least) ++equal;
  }
  std::printf("the floor is the least peak in %d of 60 problems\n", equal);
  EXPECT_GE(equal, 50);
}

// A long sequence with nothing but host memory to borrow, at 64 ms of copies per layer and way.
PlanProblem HostOnly(double slowdown) {
  PlanProblem problem = LongSequence(12);
  problem.forbidden_tiers = {Tier::kPeer};
  problem.links[1].bytes_per_second = 1.15e9;
  problem.links[1].compute_slowdown = 0;
  problem.ranks[0].host_slowdown = {slowdown, slowdown};
  problem.ranks[0].activation_budget = AllActivations(problem) * 3 / 10;
  return InCanonicalOrder(std::move(problem));
}

double RecomputeSeconds(const RankSolution& solution) { return solution.result.recompute_s; }

TEST(RankSearch, RunsMoreAgainWhereCopiesSlowTheComputeBesideThem) {
  const RankModel free = BuildRankModel(HostOnly(0), 0, Taken());
  const RankModel priced = BuildRankModel(HostOnly(0.08), 0, Taken());
  const RankSolution unaware = *SearchRank(free);
  const RankSolution aware = *SearchRank(priced);
  EXPECT_GT(RecomputeSeconds(aware), RecomputeSeconds(unaware));
  // What the unaware plan would really take, and what the other one says of itself.
  std::vector<BlockLoad> loads;
  for (size_t b = 0; b < priced.blocks.size(); ++b) {
    loads.push_back(LoadOf(priced, priced.blocks[b], unaware.choices[b]));
  }
  const StepResult real = SimulateStep(priced, loads, unaware.limits);
  std::printf("planned %.1f ms without a price of copies, really %.1f; with one %.1f, %.1f again\n",
              unaware.result.step_s * 1e3, real.step_s * 1e3, aware.result.step_s * 1e3,
              aware.result.recompute_s * 1e3);
  EXPECT_GT(real.step_s, unaware.result.step_s);
  EXPECT_LT(aware.result.step_s, real.step_s);
}

TEST(RankSearch, NothingIsDoneWhenNothingIsNeeded) {
  const PlanProblem problem = InCanonicalOrder(Transformer(3, 4));
  const RankModel model = BuildRankModel(problem, 0, Taken());
  const absl::optional<RankSolution> found = SearchRank(model);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->limits.stash, 0);
  EXPECT_EQ(found->result.exposed_s, 0);
}

}  // namespace
}  // namespace hyperframes
