// Who is admitted next, and how long a large job lets smaller ones pass. docs/cases.md C18.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "coordinator/jobs/admission.h"
#include "coordinator/jobs/job_life.h"

namespace hyperframes {
namespace {

const absl::Duration kPatience = Reconciler::Options().gang_patience;

class Queue : public JobLife {
 protected:
  bool Says(const std::string& id, const std::string& words) {
    return absl::StrContains(Job(id)->message(), words);
  }
  // All ranks of the job end well.
  void Finish(const std::string& id) {
    const JobBook::Record job = Job(id);
    for (const v1::JobWorkerRecord& worker : job->workers()) {
      End(worker.node(), worker.worker_id(), 0);
    }
    Pass();
    EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_SUCCEEDED);
  }
  bool Runs(const std::string& id) { return Job(id)->state() == v1::JOB_STATE_RUNNING; }
};

TEST_F(Queue, ALargeGangThatWasPassedForItsPatienceIsPassedNoMore) {
  const std::string first = Submit(2);
  Pass();
  const std::string gang = Submit(4);
  Pass();
  EXPECT_TRUE(Says(gang, "waits for 2 of 4 GPUs")) << Job(gang)->message();
  EXPECT_TRUE(Says(gang, "; 0 jobs ahead")) << Job(gang)->message();
  clock_.Advance(absl::Hours(1));  // Nobody has passed it: its patience has not begun.
  const std::string second = Submit(1);
  Pass();
  EXPECT_TRUE(Runs(second));
  clock_.Advance(kPatience - absl::Seconds(1));
  const std::string third = Submit(1);
  Pass();
  EXPECT_TRUE(Runs(third)) << "a second before";
  Finish(third);
  clock_.Advance(absl::Seconds(1));
  const std::string late = Submit(1);
  Pass();
  EXPECT_EQ(Job(late)->state(), v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(Says(late, "waits for 1 of 1 GPU (")) << Job(late)->message();
  EXPECT_TRUE(Says(late, "; 1 job ahead; 1 free held for job " + gang)) << Job(late)->message();
  EXPECT_TRUE(Says(gang, "1 free held for it")) << Job(gang)->message();
  Finish(first);
  EXPECT_EQ(Job(late)->state(), v1::JOB_STATE_QUEUED) << "three are free, all held";
  Finish(second);
  EXPECT_TRUE(Runs(gang)) << Job(gang)->message();
  EXPECT_EQ(Job(late)->state(), v1::JOB_STATE_QUEUED);
  Finish(gang);
  EXPECT_TRUE(Runs(late));
}

TEST_F(Queue, PatienceOutlivesTheCoordinator) {
  const std::string first = Submit(1);
  Pass();
  const std::string gang = Submit(4);
  ASSERT_TRUE(book_->Submit(Spec(1), "").ok());
  Pass();
  clock_.Advance(kPatience);
  Restart();
  for (const char* node : {"a", "b"}) {
    Register(node, 1);
    Report(node);
  }
  const std::string late = Submit(1);
  Pass();
  EXPECT_EQ(Job(late)->state(), v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(Says(late, "held for job " + gang)) << Job(late)->message();
}

TEST_F(Queue, WhatCannotFitHoldsNothingHoweverLongItWaits) {
  const std::string impossible = Submit(5);
  ASSERT_TRUE(book_->Submit(Spec(1), "").ok());
  Pass();
  clock_.Advance(100 * kPatience);
  const std::string small = Submit(1);
  Pass();
  EXPECT_TRUE(Runs(small));
  EXPECT_EQ(Job(impossible)->reason(), "not_enough_gpus");
}

TEST_F(Queue, AGangWhoseNodeIsLostLetsOthersPassUntilItIsBack) {
  const std::string first = Submit(1);
  Pass();
  const std::string gang = Submit(4);
  const std::string second = Submit(1);
  Pass();
  clock_.Advance(kPatience);
  MakeOffline();
  Register(Job(first)->workers(0).node(), 2);
  const std::string third = Submit(1);
  Pass();
  EXPECT_EQ(Job(third)->state() == v1::JOB_STATE_RUNNING,
            Job(first)->workers(0).node() != Job(second)->workers(0).node())
      << "two of its four GPUs are gone: it could not run anyhow";
  EXPECT_FALSE(Says(gang, "held for it")) << Job(gang)->message();
}

TEST(AdmitQueue, WithoutPatienceNobodyPassesWhatCouldFit) {
  v1::JobRecord large, small;
  large.set_id("large");
  large.mutable_spec()->set_ranks(2);
  small.set_id("small");
  small.mutable_spec()->set_ranks(1);
  const std::vector<JobBook::Record> queued = {std::make_shared<v1::JobRecord>(large),
                                               std::make_shared<v1::JobRecord>(small)};
  ClusterView view;
  view.gpus = view.usable = 2;
  view.free = {FreeGpu{"a", "SIM-a-0", 0, false}};
  ClusterView patient = view;
  const absl::Time now = absl::FromUnixSeconds(1800000000);
  EXPECT_FALSE(AdmitQueue(queued, absl::ZeroDuration(), now, &view)[1].admitted);
  const std::vector<Verdict> verdicts = AdmitQueue(queued, kPatience, now, &patient);
  EXPECT_TRUE(verdicts[0].passed);
  EXPECT_TRUE(verdicts[1].admitted);
}

}  // namespace
}  // namespace hyperframes
