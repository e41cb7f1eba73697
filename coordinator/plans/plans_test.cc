#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/jobs/fake_agents.h"
#include "coordinator/plans/lease_book.h"
#include "coordinator/plans/lease_reclaimer.h"
#include "coordinator/plans/plan_desk.h"
#include "coordinator/plans/plan_problem.h"
#include "coordinator/store/memory_store.h"

namespace hyperframes {
namespace {

// Two nodes "a" and "b" with two GPUs of 1000 bytes, rank n of a running job on GPU 0 of its node.
class Plans : public testing::Test {
 protected:
  void SetUp() override {
    Restart();
    job_ = RunningJob(v1::JobSpec(), 0);
  }
  void Restart() {
    desk_.reset();
    ++epoch_;
    ledger_ = std::make_unique<HeartbeatLedger>(&clock_);
    registry_ = std::make_unique<NodeRegistry>(NodeRegistry::Options(), &clock_, ledger_.get());
    jobs_ = std::move(JobBook::Load(JobBook::Options(), &store_, &clock_)).value();
    leases_ = std::move(LeaseBook::Load(&store_, [this](const std::string& reason) {
                ++reclaimed_[reason];
              })).value();
    reclaimer_ = std::make_unique<LeaseReclaimer>(epoch_, leases_.get(), jobs_.get(),
                                                  registry_.get(), &agents_, &clock_);
    MakeDesk(absl::Minutes(1));
    Register("a");
    Register("b");
  }
  void MakeDesk(absl::Duration wait) {
    PlanDesk::Options options;
    options.epoch = epoch_;
    options.wait = wait;
    desk_ = std::make_unique<PlanDesk>(
        options, [this](const v1::PlanProblem& problem) { return Plan(problem); }, jobs_.get(),
        leases_.get(), registry_.get(), &agents_, &clock_);
  }
  void Register(const std::string& node) {
    v1::RegisterRequest request;
    request.set_node(node);
    request.set_incarnation(1);
    request.set_agent_address(node);
    request.set_worker_socket("/run/" + node + ".sock");
    request.set_host_lendable_bytes(2000);
    for (int i = 0; i < 2; ++i) {
      v1::GpuInfo* gpu = request.add_gpus();
      gpu->set_uuid(absl::StrCat("SIM-", node, "-", i));
      gpu->set_total_bytes(1000);
      gpu->set_reserve_bytes(100);
      gpu->set_occupied_bytes(50);
    }
    v1::LinkProfile* link = request.add_links();
    link->set_from("SIM-" + node + "-0");
    link->set_to("SIM-" + node + "-1");
    link->set_bytes_per_second(1e9);
    ASSERT_TRUE(registry_->Register(request).ok());
  }
  std::string RunningJob(v1::JobSpec spec, int gpu) {
    spec.set_name("train");
    spec.add_command("/bin/true");
    spec.set_ranks(2);
    const std::string id = (*jobs_->Submit(spec, ""))->id();
    for (const auto state :
         {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING}) {
      EXPECT_TRUE(Edit(id, [&](v1::JobRecord* record) {
        record->set_state(state);
        if (state != v1::JOB_STATE_ADMITTED) return;
        for (int rank = 0; rank < 2; ++rank) {
          v1::JobWorkerRecord* worker = record->add_workers();
          worker->set_rank(rank);
          worker->set_node(rank == 0 ? "a" : "b");
          worker->set_gpu(absl::StrCat("SIM-", worker->node(), "-", gpu));
        }
      }));
    }
    return id;
  }
  bool Edit(const std::string& id, const std::function<void(v1::JobRecord*)>& edit) {
    return jobs_
        ->Update(id,
                 [&](v1::JobRecord* record) {
                   edit(record);
                   return absl::OkStatus();
                 })
        .ok();
  }
  void EndJob(const std::string& id) {
    EXPECT_TRUE(Edit(id, [](v1::JobRecord* record) {
      record->set_state(v1::JOB_STATE_SUCCEEDED);
      for (auto& worker : *record->mutable_workers()) worker.set_released(true);
    }));
  }
  v1::CreatePlanRequest Profile(int rank, Bytes resident = 1) {
    v1::CreatePlanRequest request;
    request.set_job_id(job_);
    request.set_job_token((*jobs_->Get(job_))->token());
    request.set_world_size(2);
    request.mutable_rank()->set_rank(rank);
    request.mutable_rank()->set_resident_bytes(resident);
    return request;
  }
  using Response = absl::StatusOr<v1::CreatePlanResponse>;
  std::vector<Response> Both(Bytes resident = 1) {
    Response second = absl::UnknownError("not asked");
    std::thread other([&] { second = desk_->CreatePlan(Profile(1, resident)); });
    Response first = desk_->CreatePlan(Profile(0, resident));
    other.join();
    return {first, second};
  }
  // The scripted planner: `peer_bytes_` on the rank's peer GPU and `host_bytes_` on its host.
  absl::StatusOr<v1::FramePlan> Plan(const v1::PlanProblem& problem) {
    problem_ = problem;
    if (!planner_status_.ok()) return planner_status_;
    v1::FramePlan plan;
    plan.set_id("0123456789abcdef");
    plan.set_advice("worth it");
    for (const v1::RankProblem& rank : problem.ranks()) {
      const std::string node = rank.gpu().substr(4, 1);
      v1::RankPlan* out = plan.add_ranks();
      out->set_rank(rank.rank());
      Need(out, "SIM-" + node + "-1", v1::TIER_PEER, peer_bytes_);
      Need(out, "host:" + node, v1::TIER_HOST, host_bytes_);
    }
    return plan;
  }
  static void Need(v1::RankPlan* plan, const std::string& device, v1::Tier tier, Bytes bytes) {
    if (bytes == 0) return;
    v1::LeaseNeed* need = plan->add_leases();
    need->set_device(device);
    need->set_tier(tier);
    need->set_bytes(bytes);
  }
  Bytes Lendable(const std::string& uuid) {
    for (const auto& device : problem_.devices()) {
      if (device.uuid() == uuid) return device.lendable_bytes();
    }
    return -1;
  }
  size_t Held() { return agents_.Leases("a").size() + agents_.Leases("b").size(); }

  MemoryStore store_;
  FakeClock clock_;
  FakeAgents agents_;
  int64_t epoch_ = 0;
  std::map<std::string, int> reclaimed_;
  std::unique_ptr<HeartbeatLedger> ledger_;
  std::unique_ptr<NodeRegistry> registry_;
  std::unique_ptr<JobBook> jobs_;
  std::unique_ptr<LeaseBook> leases_;
  std::unique_ptr<LeaseReclaimer> reclaimer_;
  std::unique_ptr<PlanDesk> desk_;
  std::string job_;
  v1::PlanProblem problem_;
  absl::Status planner_status_;
  Bytes peer_bytes_ = 300;
  Bytes host_bytes_ = 200;
};

TEST_F(Plans, GathersAllRanksAndGivesEachItsOwnLeases) {
  const auto answers = Both();
  for (int rank = 0; rank < 2; ++rank) {
    const std::string node = rank == 0 ? "a" : "b";
    ASSERT_TRUE(answers[rank].ok()) << answers[rank].status();
    ASSERT_EQ(answers[rank]->leases_size(), 2);
    EXPECT_EQ(answers[rank]->plan().rank(), rank);
    EXPECT_EQ(answers[rank]->plan_epoch(), 1);
    EXPECT_EQ(answers[rank]->advice(), "worth it");
    for (const auto& lease : answers[rank]->leases()) {
      EXPECT_EQ(lease.worker_socket(), "/run/" + node + ".sock");
      EXPECT_EQ(lease.token().size(), 32u);
      EXPECT_TRUE(absl::StrContains(lease.device(), node));
    }
    for (const auto& lease : agents_.Leases(node)) {
      EXPECT_EQ(lease.state(), v1::LEASE_STATE_COMMITTED);
    }
  }
  EXPECT_EQ(Held(), 4u);
  EXPECT_EQ((*jobs_->Get(job_))->plan_epoch(), 1);
  EXPECT_EQ(desk_->GetPlan(job_)->epoch(), 1);
}

TEST_F(Plans, LendsWhatIsLeftAndNothingOfAGpuThatComputes) {
  Both();
  EXPECT_EQ(Lendable("SIM-a-0"), 0);
  EXPECT_EQ(Lendable("SIM-a-1"), 850) << "of 1000, 100 in reserve and 50 used by somebody else";
  EXPECT_EQ(Lendable("host:a"), 2000);
  EXPECT_EQ(problem_.links_size(), 2);
  EXPECT_EQ(problem_.ranks(1).gpu(), "SIM-b-0");
  // A second job computes on the lenders: it sees them smaller, and nothing to borrow but the host.
  peer_bytes_ = 0;
  job_ = RunningJob(v1::JobSpec(), 1);
  const auto answers = Both();
  ASSERT_TRUE(answers[0].ok()) << answers[0].status();
  EXPECT_EQ(Lendable("SIM-a-1"), 0);
  EXPECT_EQ(Lendable("host:a"), 1800);
  for (const auto& device : problem_.devices()) {
    if (device.uuid() == "SIM-a-1") {
      EXPECT_EQ(device.usable_bytes(), 700);
    }
  }
}

TEST_F(Plans, ARepeatedCallGetsTheSameAnswerAlsoAfterARestart) {
  const auto answers = Both();
  EXPECT_EQ(desk_->CreatePlan(Profile(0))->SerializeAsString(), answers[0]->SerializeAsString());
  Restart();
  EXPECT_EQ(desk_->CreatePlan(Profile(1))->SerializeAsString(), answers[1]->SerializeAsString());
  EXPECT_EQ(agents_.calls("PrepareLease"), 4);
}

TEST_F(Plans, AJobThatSavesMeanwhileIsPlannedAsWell) {
  ASSERT_TRUE(
      Edit(job_, [](v1::JobRecord* record) { record->set_state(v1::JOB_STATE_CHECKPOINTING); }));
  for (const auto& answer : Both()) EXPECT_TRUE(answer.ok()) << answer.status();
}

TEST_F(Plans, TheAnswerHasTheMeasuredLinksOfTheRankAndItsGpu) {
  const auto answers = Both();
  for (int rank = 0; rank < 2; ++rank) {
    const std::string node = rank == 0 ? "a" : "b";
    ASSERT_EQ(answers[rank]->links_size(), 1) << "the link to the host was never measured";
    EXPECT_EQ(answers[rank]->links(0).from(), "SIM-" + node + "-0");
    EXPECT_EQ(answers[rank]->links(0).to(), "SIM-" + node + "-1");
    EXPECT_EQ(answers[rank]->links(0).bytes_per_second(), 1e9);
    EXPECT_EQ(answers[rank]->gpu().uuid(), "SIM-" + node + "-0");
    EXPECT_EQ(answers[rank]->gpu().usable_bytes(), 1000);
  }
}

TEST_F(Plans, NewProfilesGetThePlanOfTheNextEpochAndReplaceTheLeases) {
  const auto first = Both();
  const auto second = Both(/*resident=*/2);
  ASSERT_TRUE(second[0].ok()) << second[0].status();
  EXPECT_EQ(second[0]->plan_epoch(), 2);
  EXPECT_EQ(Held(), 4u);
  EXPECT_EQ(reclaimed_["replaced"], 4);
  EXPECT_NE(second[0]->leases(0).token(), first[0]->leases(0).token());
}

TEST_F(Plans, ARankThatAsksTwiceReplacesItsProfile) {
  Response overtaken = absl::UnknownError("not asked");
  std::thread first([&] { overtaken = desk_->CreatePlan(Profile(0, 5)); });
  while (desk_->waiting() < 1) std::this_thread::yield();
  Response answer = absl::UnknownError("not asked");
  std::thread second([&] { answer = desk_->CreatePlan(Profile(0, 6)); });
  while (desk_->waiting() < 2) std::this_thread::yield();
  EXPECT_TRUE(desk_->CreatePlan(Profile(1)).ok());
  first.join();
  second.join();
  EXPECT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(absl::IsAborted(overtaken.status())) << overtaken.status();
  EXPECT_EQ(problem_.ranks(0).resident_bytes(), 6);
}

TEST_F(Plans, NamesTheRanksThatDidNotCome) {
  MakeDesk(absl::Milliseconds(5));
  const auto answer = desk_->CreatePlan(Profile(0));
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status()));
  EXPECT_TRUE(absl::StrContains(answer.status().message(), "from rank 1;")) << answer.status();
  EXPECT_EQ(Held(), 0u);
}

// docs/cases.md C22.
TEST_F(Plans, RefusesAnotherJobsTokenAndShowsNoRankTheTokensOfAnother) {
  const std::string mine = job_;
  const auto answers = Both();
  job_ = RunningJob(v1::JobSpec(), 1);
  v1::CreatePlanRequest stolen = Profile(0);
  stolen.set_job_id(mine);
  EXPECT_TRUE(absl::IsPermissionDenied(desk_->CreatePlan(stolen).status()));
  stolen.set_job_token("");
  EXPECT_TRUE(absl::IsPermissionDenied(desk_->CreatePlan(stolen).status()));
  const std::string plan = desk_->GetPlan(mine)->SerializeAsString();
  for (const auto& lease : answers[0]->leases()) {
    EXPECT_FALSE(absl::StrContains(answers[1]->SerializeAsString(), lease.token()));
    EXPECT_FALSE(absl::StrContains(plan, lease.token()));
  }
}

TEST_F(Plans, NamesTheFieldOfABadRequest) {
  v1::CreatePlanRequest world = Profile(0);
  world.set_world_size(3);
  EXPECT_TRUE(absl::StrContains(desk_->CreatePlan(world).status().message(), "world_size 3"));
  EXPECT_TRUE(
      absl::StrContains(desk_->CreatePlan(Profile(2)).status().message(), "rank.rank is 2"));
  v1::CreatePlanRequest gpu = Profile(0);
  gpu.mutable_rank()->set_gpu("SIM-b-1");
  EXPECT_TRUE(absl::StrContains(desk_->CreatePlan(gpu).status().message(), "rank.gpu"));
  EndJob(job_);
  EXPECT_TRUE(absl::IsFailedPrecondition(desk_->CreatePlan(Profile(0)).status()));
}

TEST_F(Plans, PassesThePlannersRefusalOnToEveryRank) {
  planner_status_ = absl::ResourceExhaustedError("SIM-a-0 asks 2000, 900 free");
  for (const auto& answer : Both()) {
    EXPECT_TRUE(absl::IsResourceExhausted(answer.status()));
    EXPECT_TRUE(absl::StrContains(answer.status().message(), "900 free"));
  }
  planner_status_ = absl::OkStatus();
  EXPECT_TRUE(Both()[0].ok());
}

TEST_F(Plans, AFailureInEitherPhaseGivesEverythingBack) {
  for (const char* phase : {"PrepareLease", "CommitLease"}) {
    agents_.Script(phase, {absl::OkStatus(), absl::OkStatus(), absl::OkStatus(),
                           absl::ResourceExhaustedError("host:b: asked 200, free 10")});
    for (const auto& answer : Both()) {
      EXPECT_TRUE(absl::IsResourceExhausted(answer.status())) << phase;
      EXPECT_TRUE(absl::StrContains(answer.status().message(), "host:b"));
    }
    EXPECT_EQ(Held(), 0u) << phase;
    EXPECT_TRUE(leases_->All().empty()) << phase;
    EXPECT_TRUE(absl::IsNotFound(desk_->GetPlan(job_).status())) << phase;
  }
}

TEST_F(Plans, WhatCannotBeGivenBackAtOnceIsReclaimedLater) {
  agents_.Script("CommitLease", {absl::UnavailableError("gone")});
  agents_.Script("ReleaseLease", {absl::UnavailableError("gone")});
  EXPECT_FALSE(Both()[0].ok());
  EXPECT_EQ(Held(), 1u);
  reclaimer_->RunOnce();
  EXPECT_EQ(Held(), 0u);
  EXPECT_TRUE(leases_->All().empty());
}

TEST_F(Plans, ALeaseOfAnEndedJobThatIsStillMappedIsRevokedFirst) {
  Both();
  ASSERT_EQ(Held(), 4u);
  agents_.HoldLeases();
  EndJob(job_);
  reclaimer_->RunOnce();
  reclaimer_->RunOnce();
  EXPECT_EQ(agents_.calls("RevokeLease"), 4) << "each is asked for once";
  EXPECT_EQ(agents_.calls("ReleaseLease"), 0);
  EXPECT_EQ(agents_.At("a").revoke_graces.begin()->second, absl::ToDoubleSeconds(kHolderGrace));
  // One holder returns its lease, which its agent reports.
  std::vector<v1::LeaseReport> reports = agents_.Leases("a");
  ASSERT_EQ(reports.size(), 2u);
  reports[0].set_state(v1::LEASE_STATE_RELEASED);
  reports[0].set_release_reason("revoked");
  ASSERT_TRUE(leases_->ApplyReports("a", reports).ok());
  EXPECT_EQ(leases_->All().size(), 3u);
  clock_.Advance(kHolderGrace + kRevocationMargin);
  for (const char* node : {"a", "b"}) ASSERT_TRUE(*ledger_->Beat(node, 1, 1));
  reclaimer_->RunOnce();
  EXPECT_EQ(agents_.calls("ReleaseLease"), 3) << "their holders had their time";
  EXPECT_TRUE(leases_->All().empty());
}

TEST_F(Plans, ALeaseOfAnEndedJobThatNobodyMapsIsGivenBackAtOnce) {
  Both();
  EndJob(job_);
  reclaimer_->RunOnce();
  EXPECT_EQ(Held(), 0u);
  EXPECT_TRUE(leases_->All().empty());
  EXPECT_EQ(agents_.calls("ReleaseLease"), 0);
}

TEST_F(Plans, AWorkerOfAnEarlierAttemptGetsNoPlan) {
  v1::CreatePlanRequest request = Profile(0);
  request.set_worker_id(job_ + "-0-0");
  const absl::Status refused = desk_->CreatePlan(request).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "was given up")) << refused;
}

TEST_F(Plans, LeasesOfAKilledLeadershipThatWereNeverCommittedAreReclaimed) {
  v1::LeaseRecord lease;
  lease.set_lease_id("lease-1");
  lease.set_job_id(job_);
  lease.set_node("a");
  lease.set_bytes(10);
  lease.set_state(v1::LEASE_STATE_PREPARED);
  lease.set_epoch(epoch_);
  ASSERT_TRUE(leases_->Add({lease}).ok());
  reclaimer_->RunOnce();
  EXPECT_EQ(leases_->All().size(), 1u) << "a plan may be under way";
  Restart();
  reclaimer_->RunOnce();
  EXPECT_TRUE(leases_->All().empty());
}

TEST_F(Plans, AJobsEndGivesItsLeasesBack) {
  Both();
  reclaimer_->RunOnce();
  EXPECT_EQ(Held(), 4u);
  EndJob(job_);
  reclaimer_->RunOnce();
  EXPECT_EQ(Held(), 0u);
  EXPECT_EQ(reclaimed_["job_end"], 4);
  EXPECT_EQ(leases_->lent_bytes(), 0);
}

TEST_F(Plans, ARestartedJobGivesItsLeasesBackFirstAndIsPlannedAnew) {
  ASSERT_TRUE(Edit(job_, [](v1::JobRecord* record) { record->set_attempt(1); }));
  EXPECT_EQ(Both()[0]->plan_epoch(), 1);
  ASSERT_TRUE(Edit(job_, [](v1::JobRecord* record) {
    record->set_state(v1::JOB_STATE_RESTARTING);
    record->mutable_workers(0)->set_released(true);
  }));
  reclaimer_->RunOnce();
  EXPECT_EQ(Held(), 4u) << "rank 1 may still use its memory";
  ASSERT_TRUE(
      Edit(job_, [](v1::JobRecord* record) { record->mutable_workers(1)->set_released(true); }));
  reclaimer_->RunOnce();
  EXPECT_EQ(Held(), 0u);
  EXPECT_EQ(leases_->OfJob(job_).size(), 0u);
  for (const auto state : {v1::JOB_STATE_ADMITTED, v1::JOB_STATE_STARTING}) {
    ASSERT_TRUE(Edit(job_, [&](v1::JobRecord* record) {
      record->set_state(state);
      record->set_attempt(2);
      for (auto& worker : *record->mutable_workers()) worker.set_released(false);
    }));
  }
  const auto answers = Both();
  ASSERT_TRUE(answers[0].ok()) << answers[0].status();
  ASSERT_TRUE(answers[1].ok()) << answers[1].status();
  EXPECT_EQ(answers[0]->plan_epoch(), 2) << "the same profiles, and not the old plan";
}

TEST_F(Plans, ANewAttemptWithoutLeasesIsPlannedAnewToo) {
  peer_bytes_ = host_bytes_ = 0;
  ASSERT_TRUE(Edit(job_, [](v1::JobRecord* record) { record->set_attempt(1); }));
  EXPECT_EQ(Both()[0]->plan_epoch(), 1);
  ASSERT_TRUE(Edit(job_, [](v1::JobRecord* record) { record->set_attempt(2); }));
  EXPECT_EQ(Both()[1]->plan_epoch(), 2);
}

TEST_F(Plans, QuotasBoundWhatIsOffered) {
  v1::JobSpec spec;
  spec.set_lent_bytes_quota(900);
  spec.set_host_bytes_quota(400);
  EndJob(job_);
  job_ = RunningJob(spec, 0);
  const auto answers = Both();
  ASSERT_TRUE(answers[0].ok()) << answers[0].status();
  EXPECT_EQ(Lendable("SIM-a-1"), 450);
  EXPECT_EQ(Lendable("host:b"), 200);
}

TEST_F(Plans, APlanThatLeasesWhatWasNotOfferedIsRefused) {
  peer_bytes_ = 901;
  const auto answers = Both();
  EXPECT_TRUE(absl::IsInternal(answers[0].status())) << answers[0].status();
  EXPECT_EQ(Held(), 0u);
}

TEST_F(Plans, APlanOverTheQuotaIsRefusedWithBothNumbers) {
  v1::JobRecord job = **jobs_->Get(job_);
  job.mutable_spec()->set_host_bytes_quota(300);
  Both();
  const absl::Status status = CheckPlan(job, problem_, *desk_->GetPlan(job_));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "host_bytes_quota of 300B")) << status;
}

TEST_F(Plans, ReportsReconcileTheRecords) {
  Both();
  std::vector<v1::LeaseReport> reports = agents_.Leases("a");
  v1::LeaseReport stray;
  stray.set_lease_id("lease-stray");
  stray.set_state(v1::LEASE_STATE_COMMITTED);
  reports.push_back(stray);
  reports[0].set_state(v1::LEASE_STATE_RELEASED);
  reports[0].set_release_reason("worker_died");
  EXPECT_EQ(*leases_->ApplyReports("a", reports), std::vector<std::string>{"lease-stray"});
  EXPECT_EQ(leases_->All().size(), 3u);
  EXPECT_EQ(reclaimed_["worker_died"], 1);
  // A restarted agent that has not heard its workers yet lists nothing: nothing is concluded.
  EXPECT_TRUE(leases_->ApplyReports("a", {})->empty());
  EXPECT_TRUE(leases_->ApplyReports("a", {})->empty());
  EXPECT_EQ(leases_->All().size(), 3u);
}

TEST_F(Plans, AStopEndsEveryWait) {
  Response answer = absl::UnknownError("");
  std::thread waiting([&] { answer = desk_->CreatePlan(Profile(0)); });
  desk_->Stop();
  waiting.join();
  EXPECT_TRUE(absl::IsUnavailable(answer.status()));
}

}  // namespace
}  // namespace hyperframes
