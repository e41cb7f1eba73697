// Lenders on other nodes: priced like any other, what they cost of both GPUs included.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/planner/plan_checks.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/test_problems.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

// The rank's own node lends `near` bytes, GPU SIM-b-0 of another one 32GiB.
PlanProblem TwoNodes(Bytes near, double network) {
  PlanProblem problem = Transformer(12, 12);
  problem.forbid_recompute = true;
  problem.ranks[0].activation_budget = AllActivations(problem) * 2 / 5;
  for (DeviceProfile& device : problem.devices) {
    device.lendable_bytes = device.uuid == "SIM-a-1" ? near : 0;
  }
  problem.devices.push_back({"SIM-b-0", "b", false, 64 * kGiB, 32 * kGiB, kGiB});
  problem.devices.push_back({"host:b", "b", true, 64 * kGiB, 32 * kGiB, 0});
  for (const char* far : {"SIM-b-0", "host:b"}) {
    problem.links.push_back(
        {"SIM-a-0", far, network, absl::Microseconds(50), "infiniband", "network:a", 0});
  }
  return problem;
}

Bytes Leased(const FramePlan& plan, const std::string& device) {
  Bytes bytes = 0;
  for (const LeaseNeed& lease : plan.ranks[0].leases) {
    if (lease.device == device) bytes += lease.bytes;
  }
  return bytes;
}

TEST(PlannerNodes, AnotherNodeLendsWhatTheOwnCannot) {
  const PlanProblem problem = TwoNodes(/*near=*/0, 20e9);
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  ASSERT_EQ(plan.ranks[0].leases.size(), 1u);
  const LeaseNeed& lease = plan.ranks[0].leases[0];
  EXPECT_EQ(lease.device, "SIM-b-0") << "host memory of another node is nobody's";
  EXPECT_EQ(lease.node, "b");
  EXPECT_EQ(lease.tier, Tier::kPeer);
  EXPECT_EQ(lease.staging_bytes, 128 * kMiB);
  const auto& blocks = plan.ranks[0].blocks;
  EXPECT_TRUE(std::any_of(blocks.begin(), blocks.end(), [](const BlockDecision& block) {
    return block.reason.find("SIM-b-0 on node b") != std::string::npos;
  }));
}

TEST(PlannerNodes, ANearLenderIsPreferredByItsTimeAndByNothingElse) {
  PlanProblem problem = TwoNodes(/*near=*/32 * kGiB, /*network=*/5e9);
  FramePlan plan = MustPlan(problem);
  EXPECT_GT(Leased(plan, "SIM-a-1"), 0);
  EXPECT_EQ(Leased(plan, "SIM-b-0"), 0);
  EXPECT_EQ(plan.ranks[0].leases[0].node, "a");
  EXPECT_EQ(plan.ranks[0].leases[0].staging_bytes, 0);
  // The same two lenders with the near one far slower than the network.
  for (LinkProfile& link : problem.links) {
    link.bytes_per_second = link.to == "SIM-a-1" ? 0.2e9 : 20e9;
  }
  plan = MustPlan(problem);
  EXPECT_GT(Leased(plan, "SIM-b-0"), Leased(plan, "SIM-a-1"));
}

TEST(PlannerNodes, BothNodesLendWhereOneIsNotEnough) {
  const Bytes near = 64 * kMiB;
  const PlanProblem problem = TwoNodes(near, 20e9);
  const FramePlan plan = MustPlan(problem);
  ExpectSound(problem, plan);
  EXPECT_GT(Leased(plan, "SIM-b-0"), 0);
  EXPECT_LE(Leased(plan, "SIM-a-1"), near);
}

TEST(PlannerNodes, StagingAndHftransferCountAgainstTheRanksGpu) {
  PlanProblem problem = TwoNodes(/*near=*/0, 20e9);
  problem.devices[0].transfer_bytes = 300 * kMiB;
  problem.ranks[0].activation_budget = -1;
  const Bytes resident = problem.ranks[0].resident_bytes;
  // Without lenders all of the activations stay; half of them are to go, and what the other node
  // costs here is to come on top.
  problem.ranks[0].budget = resident + AllActivations(problem) / 2 + 428 * kMiB;
  const FramePlan plan = MustPlan(problem);
  EXPECT_GT(Leased(plan, "SIM-b-0"), 0);
  EXPECT_LE(plan.ranks[0].predicted_peak,
            problem.ranks[0].budget + problem.ranks[0].overhead_bytes);
  EXPECT_GE(plan.ranks[0].predicted_peak, resident + plan.ranks[0].bytes_by_tier[0] + 428 * kMiB);
  // Where they do not fit, nothing crosses: the same budget less what they take.
  problem.ranks[0].budget = resident + 428 * kMiB;
  EXPECT_THAT(std::string(MakeGreedyPlanner()->Plan(problem).status().message()),
              HasSubstr("the smallest budget that works"));
}

TEST(PlannerNodes, WhatHftransferKeepsOfTheLenderIsNotLent) {
  PlanProblem problem = TwoNodes(/*near=*/0, 20e9);
  const Bytes needed = Leased(MustPlan(problem), "SIM-b-0");
  for (DeviceProfile& device : problem.devices) {
    if (device.uuid == "SIM-b-0") device.lendable_bytes = needed + device.transfer_bytes - 1;
  }
  problem.forbid_recompute = false;
  EXPECT_LT(Leased(MustPlan(problem), "SIM-b-0"), needed);
}

TEST(PlannerNodes, WhatARankMeasuredBesideItsOwnNodesCopiesSaysNothingOfAnotherNode) {
  PlanProblem problem = TwoNodes(/*near=*/0, 20e9);
  const FramePlan free = MustPlan(problem);
  ASSERT_GT(Leased(free, "SIM-b-0"), 0);
  problem.ranks[0].peer_slowdown = {0.5, 0.5};
  EXPECT_EQ(MustPlan(problem).ranks[0].predicted_step, free.ranks[0].predicted_step);
}

TEST(PlannerNodes, NobodyAsksAnotherNodeWhereNothingHasToMove) {
  PlanProblem problem = TwoNodes(/*near=*/0, 20e9);
  problem.ranks[0].activation_budget = -1;
  EXPECT_TRUE(MustPlan(problem).ranks[0].leases.empty());
}

}  // namespace
}  // namespace hyperframes
