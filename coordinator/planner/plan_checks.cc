#include "coordinator/planner/plan_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace hyperframes {
namespace {

const SelectiveStorage& SelectiveOf(const BlockProfile& block, int32_t ordinal) {
  return *std::find_if(block.selective.begin(), block.selective.end(),
                       [ordinal](const SelectiveStorage& s) { return s.ordinal == ordinal; });
}

// Bytes that wait under SELECTIVE without being among what a SAVE would hold.
Bytes SelectedBeyond(const RankProblem& problem, const RankPlan& plan) {
  Bytes bytes = 0;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    for (const StorageDecision& where : plan.blocks[b].selected) {
      const SelectiveStorage& storage = SelectiveOf(problem.blocks[b], where.ordinal);
      if (!storage.is_saved) bytes += storage.bytes + storage.kept_bytes;
    }
  }
  return bytes;
}

}  // namespace

FramePlan MustPlan(const PlanProblem& problem) {
  const auto plan = MakeGreedyPlanner()->Plan(problem);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (plan.ok()) return *plan;
  FramePlan empty;  // So that the checks after the failure have something to read.
  empty.ranks.resize(problem.ranks.size());
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    empty.ranks[r].blocks.resize(problem.ranks[r].blocks.size());
  }
  return empty;
}

int CountOf(const FramePlan& plan, Policy policy) {
  const auto& blocks = plan.ranks[0].blocks;
  return static_cast<int>(
      std::count_if(blocks.begin(), blocks.end(),
                    [policy](const BlockDecision& block) { return block.policy == policy; }));
}

// What must hold for any plan, whatever decided it.
void ExpectSound(const PlanProblem& problem, const FramePlan& plan) {
  std::map<std::string, Bytes> leased;
  ASSERT_EQ(plan.ranks.size(), problem.ranks.size());
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlan& rank = plan.ranks[r];
    const RankProblem& of = problem.ranks[r];
    ASSERT_EQ(rank.blocks.size(), of.blocks.size());
    if (of.activation_budget >= 0) {
      EXPECT_LE(rank.predicted_activation_peak, of.activation_budget);
    }
    std::map<std::string, Bytes> lease;
    for (const LeaseNeed& need : rank.leases) {
      lease[need.device] = need.bytes;
      leased[need.device] += need.bytes;
    }
    std::map<std::string, Bytes> end;
    std::map<size_t, std::vector<std::pair<StorageDecision, Bytes>>> again;
    Bytes total = rank.recomputed_bytes;
    for (const Bytes bytes : rank.bytes_by_tier) total += bytes;
    EXPECT_EQ(total, rank.activation_bytes + SelectedBeyond(of, rank));
    for (size_t b = 0; b < rank.blocks.size(); ++b) {
      const BlockDecision& block = rank.blocks[b];
      const BlockProfile& profile = of.blocks[b];
      EXPECT_EQ(block.name, profile.name);
      EXPECT_FALSE(block.reason.empty());
      EXPECT_LT(block.reason.size(), 600u);
      EXPECT_TRUE(profile.recomputable || block.policy == Policy::kSave);
      ASSERT_EQ(block.storages.size(), profile.storages.size());
      std::vector<std::pair<StorageDecision, Bytes>> slots;
      for (size_t s = 0; s < block.storages.size(); ++s) {
        const StorageDecision& where = block.storages[s];
        EXPECT_EQ(where.ordinal, profile.storages[s].ordinal);
        if (where.tier == Tier::kKeep) {
          EXPECT_EQ(where.device, "");
          EXPECT_EQ(where.preferred_offset, -1);
          continue;
        }
        EXPECT_TRUE(profile.storages[s].movable && profile.storages[s].stable);
        if (block.policy == Policy::kSave || profile.storages[s].is_input) {
          slots.push_back({where, profile.storages[s].bytes});
          continue;
        }
        EXPECT_EQ(block.policy, Policy::kRecompute);
        EXPECT_GT(profile.rerun_bytes, 0);
        again[b].push_back({where, profile.storages[s].bytes});
      }
      EXPECT_EQ(block.selected.empty(), block.policy != Policy::kSelective);
      for (const StorageDecision& where : block.selected) {
        const SelectiveStorage& storage = SelectiveOf(profile, where.ordinal);
        EXPECT_TRUE(storage.movable || where.tier == Tier::kKeep);
        if (where.tier != Tier::kKeep) slots.push_back({where, storage.bytes});
      }
      for (const auto& [where, bytes] : slots) {
        // Slots follow each other, so they never overlap.
        EXPECT_GE(where.preferred_offset, end[where.device]);
        EXPECT_EQ(where.preferred_offset % kSlotAlignment, 0);
        end[where.device] = where.preferred_offset + bytes;
        EXPECT_LE(end[where.device], lease[where.device]);
      }
    }
    // What blocks put away as they run again lies behind all of that, each block's for itself.
    for (const auto& [block, slots] : again) {
      std::map<std::string, Bytes> own_end = end;
      for (const auto& [where, bytes] : slots) {
        EXPECT_GE(where.preferred_offset, own_end[where.device]) << block;
        EXPECT_EQ(where.preferred_offset % kSlotAlignment, 0);
        own_end[where.device] = where.preferred_offset + bytes;
        EXPECT_LE(own_end[where.device], lease[where.device]);
      }
    }
  }
  for (const DeviceProfile& device : problem.devices) {
    EXPECT_LE(leased[device.uuid], device.lendable_bytes) << device.uuid;
  }
}

}  // namespace hyperframes
