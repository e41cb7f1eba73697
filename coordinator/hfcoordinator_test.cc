// The program itself: its address line, its stalls, its death.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "common/eventually.h"
#include "common/protocol_version.h"
#include "coordinator/coordinator_program.h"
#include "hyperframes/v1/coordinator.grpc.pb.h"
#include "hyperframes/v1/membership.grpc.pb.h"

namespace hyperframes {
namespace {

class Program : public CoordinatorProgram {
 protected:
  bool Register() {
    v1::RegisterRequest request;
    request.mutable_version()->set_major(kProtocolMajor);
    request.set_node("a");
    request.set_incarnation(7);
    request.set_agent_address("127.0.0.1:1");
    v1::RegisterResponse response;
    return v1::Membership::NewStub(channel_)->Register(Within(10).get(), request, &response).ok();
  }
  v1::NodeState State() {
    v1::ListNodesRequest request;
    request.mutable_version()->set_major(kProtocolMajor);
    v1::ListNodesResponse response;
    const auto status =
        v1::Cluster::NewStub(channel_)->ListNodes(Within(10).get(), request, &response);
    return status.ok() && response.nodes_size() == 1 ? response.nodes(0).state()
                                                     : v1::NODE_STATE_UNSPECIFIED;
  }
};

// docs/cases.md C2.
TEST_F(Program, StoppedForTwoTtlsDeclaresNobodyOfflineWhenItWakes) {
  Spawn();
  ASSERT_TRUE(Register());
  std::atomic<bool> done{false};
  std::atomic<int> answered{0};
  std::thread agent([&] {
    const auto stub = v1::Membership::NewStub(channel_);
    for (uint64_t sequence = 1; !done; ++sequence) {
      v1::HeartbeatRequest request;
      request.set_node("a");
      request.set_incarnation(7);
      request.set_sequence(sequence);
      v1::HeartbeatResponse response;
      if (stub->Heartbeat(Within(10).get(), request, &response).ok()) {
        EXPECT_TRUE(response.known()) << "it was declared OFFLINE";
        ++answered;
      }
      absl::SleepFor(absl::Milliseconds(100));  // The --heartbeat-interval that it was given.
    }
  });
  kill(child_, SIGSTOP);
  absl::SleepFor(absl::Seconds(2));  // A real wait: the program reads a clock of its own.
  answered = 0;
  kill(child_, SIGCONT);
  // Awake for ten intervals, by what it has answered.
  const auto never_offline = [&] {
    const v1::NodeState state = State();
    EXPECT_TRUE(state == v1::NODE_STATE_ALIVE || state == v1::NODE_STATE_SUSPECTED) << state;
    return answered >= 10;
  };
  EXPECT_TRUE(Eventually(never_offline));
  EXPECT_TRUE(Eventually([&] { return State() == v1::NODE_STATE_ALIVE; }));
  done = true;
  agent.join();
}

TEST_F(Program, KeepsAnAcknowledgedJobThroughAKillAndEndsCleanlyOnSigterm) {
  Spawn();
  v1::SubmitJobRequest request;
  request.mutable_version()->set_major(kProtocolMajor);
  request.mutable_spec()->set_name("train");
  request.mutable_spec()->add_command("/bin/true");
  request.mutable_spec()->set_ranks(1);
  v1::SubmitJobResponse submitted;
  ASSERT_TRUE(v1::Jobs::NewStub(channel_)->SubmitJob(Within(10).get(), request, &submitted).ok());
  End(SIGKILL);
  Spawn();
  v1::GetJobRequest get;
  get.set_id(submitted.job().id());
  v1::Job job;
  EXPECT_TRUE(v1::Jobs::NewStub(channel_)->GetJob(Within(10).get(), get, &job).ok());
  EXPECT_GT(job.version(), submitted.job().version());
  const int status = End(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace hyperframes
