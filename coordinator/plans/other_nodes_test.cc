// Leases of a rank on another node than its own: what is offered, how it is taken, what is granted.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/jobs/fake_agents.h"
#include "coordinator/plans/lease_book.h"
#include "coordinator/plans/lease_reclaimer.h"
#include "coordinator/plans/network_links.h"
#include "coordinator/plans/plan_desk.h"
#include "coordinator/plans/plan_problem.h"
#include "coordinator/store/memory_store.h"

namespace hyperframes {
namespace {

// Nodes "a" and "b" with a network and "c" without, one GPU of 1000 bytes and 2000 of host memory
// each; a job of one rank on a's GPU, whose plan leases 300 bytes on b's.
class OtherNodes : public testing::Test {
 protected:
  void SetUp() override {
    Restart();
    spec_.set_name("train");
    spec_.add_command("/bin/true");
    spec_.set_ranks(1);
    StartJob();
  }
  void Restart() {
    desk_.reset();
    ledger_ = std::make_unique<HeartbeatLedger>(&clock_);
    registry_ = std::make_unique<NodeRegistry>(NodeRegistry::Options(), &clock_, ledger_.get());
    jobs_ = std::move(JobBook::Load(JobBook::Options(), &store_, &clock_)).value();
    leases_ = std::move(LeaseBook::Load(&store_, nullptr)).value();
    PlanDesk::Options options;
    options.epoch = ++epoch_;
    desk_ = std::make_unique<PlanDesk>(
        options, [this](const v1::PlanProblem& problem) { return Plan(problem); }, jobs_.get(),
        leases_.get(), registry_.get(), &agents_, &clock_);
    Register("a", 4e9, 2e-5);
    Register("b", 1e9, 1e-5);
    Register("c", 0, 0);
  }
  void Register(const std::string& node, double bandwidth, double latency) {
    v1::RegisterRequest request;
    request.set_node(node);
    request.set_incarnation(1);
    request.set_agent_address(node);
    request.set_worker_socket("/run/" + node + ".sock");
    request.set_host_lendable_bytes(2000);
    v1::GpuInfo* gpu = request.add_gpus();
    gpu->set_uuid("SIM-" + node + "-0");
    gpu->set_total_bytes(1000);
    request.mutable_network()->set_bytes_per_second(bandwidth);
    request.mutable_network()->set_latency_s(latency);
    request.mutable_network()->set_kind("of " + node);
    request.mutable_network()->set_transfer_bytes(7);
    ASSERT_TRUE(registry_->Register(request).ok());
  }
  // What the agent of `node` says of its way to `other`.
  void Measured(const std::string& node, const std::string& other, double rate,
                absl::Duration age = absl::ZeroDuration()) {
    v1::ReportRequest report;
    report.set_node(node);
    report.set_incarnation(1);
    *report.mutable_gpus() = registry_->Find(node)->info.gpus();
    v1::NetworkMeasurement* measured = report.add_network_measured();
    measured->set_node(other);
    measured->set_bytes_per_second(rate);
    measured->set_age_s(absl::ToDoubleSeconds(age));
    ASSERT_TRUE(*registry_->Report(report));
  }
  double LinkSpeed() {
    return NetworkLink(*registry_->Find("a"), "SIM-a-0", *registry_->Find("b"), "SIM-b-0")
        .bytes_per_second();
  }
  void StartJob() {
    job_ = (*jobs_->Submit(spec_, ""))->id();
    for (const auto state :
         {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING}) {
      ASSERT_TRUE(jobs_
                      ->Update(job_,
                               [&](v1::JobRecord* record) {
                                 record->set_state(state);
                                 if (record->workers_size() > 0) return absl::OkStatus();
                                 v1::JobWorkerRecord* worker = record->add_workers();
                                 worker->set_node("a");
                                 worker->set_gpu("SIM-a-0");
                                 return absl::OkStatus();
                               })
                      .ok());
    }
  }
  absl::StatusOr<v1::CreatePlanResponse> Ask(const v1::RankProblem& rank = {}) {
    v1::CreatePlanRequest request;
    *request.mutable_rank() = rank;
    request.set_job_id(job_);
    request.set_job_token((*jobs_->Get(job_))->token());
    request.set_world_size(1);
    return desk_->CreatePlan(request);
  }
  absl::StatusOr<v1::FramePlan> Plan(const v1::PlanProblem& problem) {
    problem_ = problem;
    v1::FramePlan plan;
    plan.set_id("0123456789abcdef");
    v1::LeaseNeed* need = plan.add_ranks()->add_leases();
    const bool near = fits_near_ && problem.links().empty();
    need->set_device(near ? "host:a" : lender_);
    need->set_tier(near ? v1::TIER_HOST : v1::TIER_PEER);
    need->set_bytes(300);
    need->set_staging_bytes(64);
    return plan;
  }
  Bytes Lendable(const std::string& uuid) const {
    for (const auto& device : problem_.devices()) {
      if (device.uuid() == uuid) return device.lendable_bytes();
    }
    return -1;
  }

  MemoryStore store_;
  FakeClock clock_;
  FakeAgents agents_;
  int64_t epoch_ = 0;
  std::unique_ptr<HeartbeatLedger> ledger_;
  std::unique_ptr<NodeRegistry> registry_;
  std::unique_ptr<JobBook> jobs_;
  std::unique_ptr<LeaseBook> leases_;
  std::unique_ptr<PlanDesk> desk_;
  v1::JobSpec spec_;
  std::string job_;
  std::string lender_ = "SIM-b-0";
  bool fits_near_ = false;  // The planner has a plan without other nodes.
  v1::PlanProblem problem_;
};

TEST_F(OtherNodes, GpusOfConnectedNodesAreOfferedOverTheSlowerOfTwoNetworks) {
  ASSERT_TRUE(Ask().ok());
  EXPECT_EQ(Lendable("SIM-b-0"), 1000);
  EXPECT_EQ(Lendable("host:b"), -1) << "host memory of another node is not offered";
  EXPECT_EQ(Lendable("SIM-c-0"), -1) << "no frame leaves or enters node c";
  ASSERT_EQ(problem_.links_size(), 1);
  const v1::LinkProfile& link = problem_.links(0);
  EXPECT_EQ(link.from(), "SIM-a-0");
  EXPECT_EQ(link.to(), "SIM-b-0");
  EXPECT_EQ(link.bytes_per_second(), 1e9);
  EXPECT_EQ(link.latency_s(), 2e-5);
  EXPECT_EQ(link.kind(), "of b");
  EXPECT_EQ(link.shared_group(), "network:a") << "its ranks share a's way out";
  EXPECT_EQ(problem_.devices(0).transfer_bytes(), 7);
}

TEST_F(OtherNodes, AWayIsNoFasterThanItWasMeasuredAndNoFasterThanPromised) {
  EXPECT_EQ(LinkSpeed(), 1e9) << "nothing is measured";
  Measured("a", "c", 1e3);
  Measured("c", "a", 1e3);
  EXPECT_EQ(LinkSpeed(), 1e9) << "that is another way";
  Measured("a", "b", 3e8);
  EXPECT_EQ(LinkSpeed(), 3e8);
  Measured("a", "b", 3e9);
  EXPECT_EQ(LinkSpeed(), 1e9);
}

TEST_F(OtherNodes, ThePlannerSeesTheMeasuredSpeed) {
  Measured("a", "b", 3e8);
  ASSERT_TRUE(Ask().ok());
  ASSERT_EQ(problem_.links_size(), 1);
  EXPECT_EQ(problem_.links(0).bytes_per_second(), 3e8);
}

TEST_F(OtherNodes, WhatTheOtherEndMeasuredCountsWhereTheOwnOneHasNot) {
  Measured("b", "a", 2e8);
  EXPECT_EQ(LinkSpeed(), 2e8);
  Measured("a", "b", 3e8);
  EXPECT_EQ(LinkSpeed(), 3e8);
}

TEST_F(OtherNodes, ThePlannerSeesWhatARankMeasuredBesideItsOwnCopies) {
  v1::RankProblem rank;
  rank.mutable_host_slowdown()->set_out(0.08);
  rank.mutable_peer_slowdown()->set_in(0.03);
  ASSERT_TRUE(Ask(rank).ok());
  ASSERT_EQ(problem_.ranks_size(), 1);
  EXPECT_EQ(problem_.ranks(0).host_slowdown().out(), 0.08);
  EXPECT_EQ(problem_.ranks(0).peer_slowdown().in(), 0.03);
}

TEST_F(OtherNodes, AnOldMeasurementIsForgottenAndThePromiseCountsAgain) {
  Measured("a", "b", 3e8, kMeasurementIsFresh - absl::Seconds(1));
  EXPECT_EQ(LinkSpeed(), 3e8);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(LinkSpeed(), 1e9);
  Measured("b", "a", 2e8);
  EXPECT_EQ(LinkSpeed(), 2e8) << "the other end's is fresh";
}

TEST_F(OtherNodes, APlanIsLeftAloneByAMeasurement) {
  const auto first = Ask();
  ASSERT_TRUE(first.ok()) << first.status();
  Measured("a", "b", 1e6);
  const auto again = Ask();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->plan_epoch(), first->plan_epoch());
  EXPECT_EQ(again->leases(0).lease_id(), first->leases(0).lease_id());
}

TEST_F(OtherNodes, TheLendersAgentPreparesAndTheGrantSaysHowItIsReached) {
  const auto answer = Ask();
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->leases_size(), 1);
  const v1::LeaseGrant& grant = answer->leases(0);
  EXPECT_EQ(grant.node(), "b");
  EXPECT_EQ(grant.transfer_address(), "transfer:b");
  EXPECT_EQ(grant.worker_socket(), "/run/a.sock") << "its own agent starts its hftransfer";
  EXPECT_EQ(grant.staging_bytes(), 64);
  ASSERT_EQ(agents_.Leases("b").size(), 1u);
  EXPECT_EQ(agents_.Leases("b")[0].state(), v1::LEASE_STATE_COMMITTED);
  EXPECT_TRUE(agents_.Leases("a").empty());
  EXPECT_EQ(leases_->All()[0].node(), "b");
  EXPECT_EQ(leases_->All()[0].holder_node(), "a");
  EXPECT_EQ(answer->plan().leases(0).node(), "b");
  ASSERT_EQ(answer->links_size(), 1);
  EXPECT_EQ(answer->links(0).to(), "SIM-b-0");
  Restart();
  const auto again = Ask();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->leases(0).transfer_address(), "transfer:b") << "it is on record";
}

TEST_F(OtherNodes, AFailureOfTheLendersAgentGivesTheLeaseBack) {
  for (const char* phase : {"PrepareLease", "CommitLease"}) {
    agents_.Script(phase, {absl::UnavailableError("node b is not there")});
    EXPECT_TRUE(absl::IsUnavailable(Ask().status())) << phase;
    EXPECT_TRUE(agents_.Leases("b").empty()) << phase;
    EXPECT_TRUE(leases_->All().empty()) << phase;
  }
}

TEST_F(OtherNodes, ALenderThatDoesNotAnswerIsPlannedWithout) {
  fits_near_ = true;
  agents_.Script("PrepareLease", {absl::UnavailableError("node b is not there")});
  const auto answer = Ask();
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->leases_size(), 1);
  EXPECT_EQ(answer->leases(0).device(), "host:a");
  EXPECT_EQ(answer->leases(0).transfer_address(), "");
  EXPECT_EQ(agents_.calls("PrepareLease"), 2);
}

TEST_F(OtherNodes, ALenderWithoutRoomIsAnError) {
  fits_near_ = true;
  agents_.Script("PrepareLease", {absl::ResourceExhaustedError("SIM-b-0: 10 bytes free")});
  EXPECT_TRUE(absl::IsResourceExhausted(Ask().status()));
  EXPECT_EQ(agents_.calls("PrepareLease"), 1);
}

TEST_F(OtherNodes, ANodeThatIsNotAliveLendsNothing) {
  clock_.Advance(absl::Seconds(4));
  for (const char* node : {"a", "c"}) ASSERT_TRUE(*ledger_->Beat(node, 1, 1));
  registry_->Tick();
  EXPECT_FALSE(Ask().ok());
  EXPECT_EQ(problem_.links_size(), 0);
  EXPECT_EQ(Lendable("SIM-b-0"), -1);
}

TEST_F(OtherNodes, APlanThatLeasesWhereNoLinkLeadsIsRefused) {
  lender_ = "SIM-c-0";
  const absl::Status refused = Ask().status();
  EXPECT_TRUE(absl::IsInternal(refused)) << refused;
  EXPECT_EQ(agents_.calls("PrepareLease"), 0);
}

TEST_F(OtherNodes, OtherNodesLendWhatTheOwnOnesLeaveOfAQuota) {
  spec_.set_lent_bytes_quota(350);
  StartJob();
  ASSERT_TRUE(Ask().ok());
  EXPECT_EQ(Lendable("SIM-b-0"), 350);
  spec_.set_lent_bytes_quota(200);
  StartJob();
  EXPECT_TRUE(absl::IsInternal(Ask().status()));
  EXPECT_EQ(Lendable("SIM-b-0"), 200);
}

TEST_F(OtherNodes, TheEndOfTheJobReleasesTheLeaseOnTheLendersAgent) {
  ASSERT_TRUE(Ask().ok());
  ASSERT_TRUE(jobs_
                  ->Update(job_,
                           [](v1::JobRecord* record) {
                             record->set_state(v1::JOB_STATE_SUCCEEDED);
                             record->mutable_workers(0)->set_released(true);
                             return absl::OkStatus();
                           })
                  .ok());
  LeaseReclaimer reclaimer(epoch_, leases_.get(), jobs_.get(), registry_.get(), &agents_, &clock_);
  reclaimer.RunOnce();
  EXPECT_TRUE(agents_.Leases("b").empty());
  EXPECT_TRUE(leases_->All().empty());
}

}  // namespace
}  // namespace hyperframes
