// Nodes that go and do not come back, or come back late.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/jobs/attempts.h"
#include "coordinator/jobs/job_life.h"

namespace hyperframes {
namespace {

const absl::Duration kLost = Reconciler::Options().lost_node_after;

class LostNode : public JobLife {
 protected:
  // Both nodes fall silent and only "a" comes back; the job of two ranks has one on each.
  std::string RunAndLoseB(int max_restarts) {
    const std::string id = SubmitRestartable(2, max_restarts);
    Pass();
    EXPECT_EQ(Job(id)->workers(1).node(), "b");
    MakeOffline();
    Register("a", 2);
    Report("a");
    return id;
  }
  // With the workers that its agent still has.
  void ComeBack(const std::string& node, uint64_t incarnation) {
    v1::RegisterRequest request = Description(node, incarnation);
    for (const v1::WorkerReport& worker : agents_.Workers(node)) *request.add_workers() = worker;
    ASSERT_TRUE(registry_->Register(request).ok());
  }
};

TEST_F(LostNode, AJobBetweenTwoAttemptsRestartsElsewhere) {
  const std::string id = RunAndLoseB(1);
  End("a", id + "-1-0", 3, 5);
  Pass();
  clock_.Advance(kLost - absl::Seconds(5));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RESTARTING);
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "node b is OFFLINE")) << Job(id)->message();
  clock_.Advance(absl::Seconds(5));
  ASSERT_TRUE(*ledger_->Beat("a", 2, 1));
  Pass();
  ASSERT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << Job(id)->message();
  for (const v1::JobWorkerRecord& worker : Job(id)->workers()) EXPECT_EQ(worker.node(), "a");
  EXPECT_EQ(FindLog(*Job(id), 1, 1)->node, "b") << "the log of the lost rank stays where it is";
  EXPECT_EQ(FindLog(*Job(id), 0, 1)->node, "a");
  EXPECT_TRUE(absl::IsNotFound(FindLog(*Job(id), 7, 1).status()));
}

TEST_F(LostNode, ARunningJobIsNotKeptForAnEmptyNodeEither) {
  const std::string id = RunAndLoseB(0);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING);
  clock_.Advance(kLost);
  ASSERT_TRUE(*ledger_->Beat("a", 2, 1));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job(id)->reason(), "worker_lost");
  EXPECT_TRUE(absl::StrContains(Job(id)->message(), "rank 1 on node b was lost"))
      << Job(id)->message();
}

TEST_F(LostNode, ANodeThatComesBackIsToldToStopWhatWasGivenUpAndIsNotSeatedBefore) {
  const std::string id = RunAndLoseB(1);
  End("a", id + "-1-0", 3, 5);
  clock_.Advance(kLost);
  ASSERT_TRUE(*ledger_->Beat("a", 2, 1));
  Pass();
  clock_.Advance(absl::Seconds(2));
  Pass();
  ASSERT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << Job(id)->message();
  ComeBack("b", 2);
  EXPECT_EQ(Report("b"), std::vector<std::string>{id + "-1-1"});
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << "the old rank's report changes nothing";
  const std::string next = (*book_->Submit(Spec(2), ""))->id();
  Pass();
  EXPECT_EQ(Job(next)->state(), v1::JOB_STATE_QUEUED) << "an old worker is on one of b's GPUs";
  agents_.Exit("b", id + "-1-1", 0, 15);
  ComeBack("b", 3);
  Pass();
  EXPECT_EQ(Job(next)->state(), v1::JOB_STATE_RUNNING) << Job(next)->message();
}

TEST_F(LostNode, AWorkerThatWasGivenUpIsStoppedAlsoBeforeItsJobRestarts) {
  const std::string id = RunAndLoseB(1);
  const std::string other = Submit(1);  // Leaves one GPU on "a": too few to restart there.
  Pass();
  End("a", id + "-1-0", 3, 5);
  clock_.Advance(kLost);
  ASSERT_TRUE(*ledger_->Beat("a", 2, 1));
  Pass();
  ASSERT_EQ(Job(id)->state(), v1::JOB_STATE_RESTARTING);
  ComeBack("b", 2);
  EXPECT_EQ(Report("b"), std::vector<std::string>{id + "-1-1"});
  clock_.Advance(absl::Seconds(2));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << "on b's other GPU: " << Job(id)->message();
  for (const v1::JobWorkerRecord& worker : Job(id)->workers()) {
    EXPECT_NE(worker.gpu(), agents_.At("b").starts[id + "-1-1"].gpu());
  }
}

TEST_F(LostNode, ANodeThatNeverCameBackToANewCoordinatorIsLostToo) {
  const std::string id = RunAndLoseB(1);
  End("a", id + "-1-0", 3, 5);
  Pass();
  Restart();
  Register("a", 2);
  Report("a");
  clock_.Advance(kLost);
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RESTARTING) << "it is given time to register";
  clock_.Advance(kTimeToComeBack);
  ASSERT_TRUE(*ledger_->Beat("a", 2, 1));
  Pass();
  EXPECT_EQ(Job(id)->state(), v1::JOB_STATE_RUNNING) << Job(id)->message();
}

}  // namespace
}  // namespace hyperframes
