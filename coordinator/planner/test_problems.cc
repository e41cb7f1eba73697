#include "coordinator/planner/test_problems.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

StorageProfile Storage(int ordinal, Bytes bytes, bool is_input) {
  StorageProfile storage;
  storage.ordinal = ordinal;
  storage.bytes = bytes;
  storage.dtype = "float32";
  storage.shape = {bytes / 4};
  storage.is_input = is_input;
  return storage;
}

void AddSurroundings(PlanProblem* problem, Bytes usable, Bytes peer, Bytes host, double peer_rate,
                     double host_rate) {
  problem->devices = {{"SIM-a-0", "a", false, usable, 0},
                      {"SIM-a-1", "a", false, usable, peer},
                      {"host:a", "a", true, host, host}};
  problem->links = {
      {"SIM-a-0", "SIM-a-1", peer_rate, absl::Microseconds(10), "simulated", "", 0.05},
      {"SIM-a-0", "host:a", host_rate, absl::Microseconds(20), "simulated", "", 0.02}};
}

}  // namespace

PlanProblem Transformer(int layers, int storages) {
  PlanProblem problem;
  problem.job_id = "job";
  AddSurroundings(&problem, 64 * kGiB, 32 * kGiB, 32 * kGiB, 20e9, 5e9);
  RankProblem rank;
  rank.gpu = "SIM-a-0";
  rank.resident_bytes = kGiB;
  rank.overhead_bytes = 64 * kMiB;
  BlockProfile embedding;
  embedding.name = "embedding";
  embedding.forward = absl::Microseconds(100);
  embedding.backward = absl::Microseconds(200);
  embedding.recomputable = false;
  embedding.storages = {Storage(0, 64 * kKiB, true)};
  rank.blocks.push_back(embedding);
  for (int layer = 0; layer < layers; ++layer) {
    BlockProfile block;
    block.name = absl::StrCat("layers.", layer);
    block.forward = absl::Milliseconds(8);
    block.backward = absl::Milliseconds(16);
    block.transient_bytes = 2 * kMiB;
    for (int s = 0; s < storages; ++s) {
      // Every fourth one is wide, as in an MLP; one in five is tiny, as statistics of a norm are.
      const Bytes bytes = s % 5 == 3 ? 8 * kKiB : s % 4 == 2 ? 16 * kMiB : 4 * kMiB;
      block.storages.push_back(Storage(s, bytes, s == 0));
    }
    rank.blocks.push_back(std::move(block));
  }
  BlockProfile loss;
  loss.name = "loss";
  loss.forward = absl::Milliseconds(1);
  loss.backward = absl::Milliseconds(2);
  loss.recomputable = false;
  loss.storages = {Storage(0, 8 * kMiB, false), Storage(1, 4 * kMiB, true)};
  rank.blocks.push_back(std::move(loss));
  problem.ranks.push_back(std::move(rank));
  return problem;
}

Bytes AllActivations(const PlanProblem& problem) {
  Bytes bytes = 0;
  for (const BlockProfile& block : problem.ranks[0].blocks) {
    for (const StorageProfile& storage : block.storages) bytes += storage.bytes;
  }
  return bytes;
}

PlanProblem Tiny(unsigned seed, int blocks) {
  std::mt19937 random(seed);
  const auto draw = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  PlanProblem problem;
  AddSurroundings(&problem, kGiB, draw(0, 40) * kMiB, draw(0, 80) * kMiB, draw(2, 40) * 1e9,
                  draw(1, 10) * 1e9);
  RankProblem rank;
  rank.gpu = "SIM-a-0";
  for (int b = 0; b < blocks; ++b) {
    BlockProfile block;
    block.name = absl::StrCat("b", b);
    block.forward = absl::Microseconds(draw(200, 3000));
    block.backward = absl::Microseconds(draw(400, 6000));
    block.recomputable = draw(0, 4) > 0;
    const int storages = draw(1, 2);
    for (int s = 0; s < storages; ++s) {
      block.storages.push_back(Storage(s, draw(1, 16) * kMiB + draw(0, 700), s == 0));
      block.storages.back().movable = draw(0, 9) > 0;
      block.storages.back().stable = draw(0, 9) > 0;
    }
    rank.blocks.push_back(std::move(block));
  }
  problem.ranks.push_back(std::move(rank));
  return problem;
}

PlanProblem LongSequence(int layers) {
  PlanProblem problem = Transformer(layers, 1);
  for (BlockProfile& block : problem.ranks[0].blocks) {
    if (!block.recomputable) continue;
    block.forward = absl::Milliseconds(33);
    block.backward = absl::Milliseconds(66);
    block.storages.clear();
    // Input, norms, queries to values, attention's output, gate, up, and what the MLP makes of
    // them.
    const Bytes sizes[] = {4, 8, 4, 6, 4, 8, 4, 11, 11, 10};
    for (int s = 0; s < 10; ++s) block.storages.push_back(Storage(s, sizes[s] * kMiB, s == 0));
    block.selective = {
        {0, 6 * kMiB, absl::Microseconds(2400), true, true, false, "aten.mm.default"},
        {1, 4 * kMiB, absl::Milliseconds(17), true, true, false, "aten.attention.default"},
        {2, 4 * kMiB, absl::Microseconds(1600), false, true, false, "aten.mm.default"},
        {3, 11 * kMiB, absl::Microseconds(4200), true, true, false, "aten.mm.default"},
        {4, 11 * kMiB, absl::Microseconds(4200), true, true, false, "aten.mm.default"}};
    block.selective_base = absl::Microseconds(3800);
  }
  return problem;
}

PlanProblem TinySelective(unsigned seed, int blocks) {
  PlanProblem problem = Tiny(seed, blocks);
  std::mt19937 random(seed + 1000);
  const auto draw = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (BlockProfile& block : problem.ranks[0].blocks) {
    block.storages.resize(1);
    block.storages.push_back(Storage(1, draw(4, 16) * kMiB, false));
    const double forward_s = absl::ToDoubleSeconds(block.forward);
    double left = 0.9;
    const int operators = draw(1, 2);
    for (int o = 0; o < operators; ++o) {
      const double share = left * draw(20, 80) / 100;
      left -= share;
      block.selective.push_back({o, draw(1, 8) * kMiB + draw(0, 700),
                                 absl::Seconds(forward_s * share), draw(0, 1) > 0, draw(0, 9) > 0,
                                 false, "aten.mm.default", Bytes{draw(0, 1)} * 2048});
    }
    block.selective_base = absl::Seconds(forward_s * left);
  }
  return problem;
}

}  // namespace hyperframes
