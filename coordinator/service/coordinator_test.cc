// The real server on free ports, with scripted agents behind real gRPC.
#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/protocol_version.h"
#include "coordinator/jobs/fake_agents.h"
#include "coordinator/service/coordinator_server.h"
#include "coordinator/service/fake_agent_server.h"
#include "hyperframes/v1/agent.grpc.pb.h"

namespace hyperframes {
namespace {

// Leases 4 KiB of its node's host memory to every rank.
absl::StatusOr<v1::FramePlan> HostPlan(const v1::PlanProblem& problem) {
  v1::FramePlan plan;
  plan.set_id("0123456789abcdef");
  for (const v1::RankProblem& rank : problem.ranks()) {
    v1::RankPlan* out = plan.add_ranks();
    out->set_rank(rank.rank());
    v1::LeaseNeed* need = out->add_leases();
    for (const v1::DeviceProfile& device : problem.devices()) {
      if (device.is_host()) need->set_device(device.uuid());
    }
    need->set_tier(v1::TIER_HOST);
    need->set_bytes(4096);
  }
  return plan;
}

class Coordinator : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/hyperframes_coordinator_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    options_.state_directory = name;
    options_.listen_address = HostPort{"127.0.0.1", 0};
    options_.http_address = HostPort{"127.0.0.1", 0};
    options_.planner = HostPlan;
  }
  void StartServer() {
    server_.reset();
    auto started = CoordinatorServer::Start(options_);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = std::move(started).value();
    const auto channel = NewChannel();
    membership_ = v1::Membership::NewStub(channel);
    cluster_ = v1::Cluster::NewStub(channel);
    jobs_ = v1::Jobs::NewStub(channel);
    plans_ = v1::Plans::NewStub(channel);
  }
  std::shared_ptr<grpc::Channel> NewChannel() {
    return grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->grpc_port()),
                               grpc::InsecureChannelCredentials());
  }
  static std::unique_ptr<grpc::ClientContext> Within(absl::Duration limit = absl::Seconds(20)) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(limit));
    return context;
  }
  grpc::Status Register(v1::RegisterResponse* response) {
    return membership_->Register(Within().get(), agent_.Description(), response);
  }
  void Report() {
    v1::ReportResponse response;
    const grpc::Status status = membership_->Report(Within().get(), agent_.News(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  static v1::SubmitJobRequest Submission(int ranks) {
    v1::SubmitJobRequest request;
    request.mutable_version()->set_major(kProtocolMajor);
    request.mutable_spec()->set_name("train");
    request.mutable_spec()->add_command("/bin/true");
    request.mutable_spec()->set_ranks(ranks);
    return request;
  }
  std::string Submit(int ranks) {
    v1::SubmitJobResponse response;
    const grpc::Status status = jobs_->SubmitJob(Within().get(), Submission(ranks), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }
  // The job once it is in `state`, or as it was after some changes.
  v1::Job Await(const std::string& id, v1::JobState state) {
    v1::WatchJobRequest request;
    request.set_id(id);
    v1::Job job;
    for (int i = 0; i < 20 && job.state() != state; ++i) {
      request.set_after_version(job.version());
      request.set_wait_s(5);
      const grpc::Status status = jobs_->WatchJob(Within().get(), request, &job);
      EXPECT_TRUE(status.ok()) << status.error_message();
    }
    EXPECT_EQ(job.state(), state) << job.message();
    return job;
  }
  v1::CreatePlanRequest Profile(const std::string& job, int rank) {
    v1::CreatePlanRequest request;
    request.mutable_version()->set_major(kProtocolMajor);
    request.set_job_id(job);
    request.set_job_token(agents_.At("a").starts[absl::StrCat(job, "-1-", rank)].job_token());
    request.set_world_size(2);
    request.mutable_rank()->set_rank(rank);
    return request;
  }
  std::string HttpGet(const std::string& path) {
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->http_port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    EXPECT_EQ(write(connection, request.data(), request.size()),
              static_cast<ssize_t>(request.size()));
    std::string answer;
    char buffer[4096];
    ssize_t size;
    while ((size = read(connection, buffer, sizeof(buffer))) > 0) {
      answer.append(buffer, static_cast<size_t>(size));
    }
    close(connection);
    return answer;
  }

  FakeAgents agents_;
  FakeAgentServer agent_{&agents_, "a"};
  CoordinatorOptions options_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::Membership::Stub> membership_;
  std::unique_ptr<v1::Cluster::Stub> cluster_;
  std::unique_ptr<v1::Jobs::Stub> jobs_;
  std::unique_ptr<v1::Plans::Stub> plans_;
};

TEST_F(Coordinator, RunsAJobFromSubmissionThroughItsPlanToItsEnd) {
  StartServer();
  v1::RegisterResponse registered;
  ASSERT_TRUE(Register(&registered).ok());
  EXPECT_EQ(registered.epoch(), 1);
  EXPECT_DOUBLE_EQ(registered.heartbeat_interval_s(), 1);
  const std::string id = Submit(2);
  Await(id, v1::JOB_STATE_RUNNING);
  EXPECT_EQ(agents_.At("a").starts[id + "-1-0"].coordinator_address(),
            absl::StrCat("127.0.0.1:", server_->grpc_port()));

  v1::CreatePlanResponse first;
  v1::CreatePlanResponse second;
  std::thread other(
      [&] { EXPECT_TRUE(plans_->CreatePlan(Within().get(), Profile(id, 1), &second).ok()); });
  const grpc::Status planned = plans_->CreatePlan(Within().get(), Profile(id, 0), &first);
  other.join();
  ASSERT_TRUE(planned.ok()) << planned.error_message();
  ASSERT_EQ(first.leases_size(), 1);
  EXPECT_EQ(first.leases(0).token().size(), 32u);
  EXPECT_NE(first.leases(0).token(), second.leases(0).token());
  EXPECT_EQ(first.leases(0).worker_socket(), "/run/a.sock");
  EXPECT_EQ(agents_.Leases("a").size(), 2u);
  v1::GetPlanRequest get;
  get.set_job_id(id);
  v1::FramePlan plan;
  ASSERT_TRUE(plans_->GetPlan(Within().get(), get, &plan).ok());
  EXPECT_EQ(plan.epoch(), 1);

  v1::ReadLogRequest read;
  read.set_job_id(id);
  read.set_rank(1);
  v1::ReadLogResponse log;
  ASSERT_TRUE(jobs_->ReadLog(Within().get(), read, &log).ok());
  EXPECT_EQ(log.data(), "a " + id + "-1-1");

  agents_.Exit("a", id + "-1-0", 0);
  agents_.Exit("a", id + "-1-1", 0);
  Report();
  Await(id, v1::JOB_STATE_SUCCEEDED);
  for (int i = 0; i < 200 && !agents_.Leases("a").empty(); ++i) Report();
  EXPECT_TRUE(agents_.Leases("a").empty());
}

// docs/cases.md C1.
TEST_F(Coordinator, HeartbeatsCountWhileEveryRpcThreadIsBlockedOnTheRegistry) {
  options_.heartbeat_interval = absl::Milliseconds(100);
  options_.suspected_after = absl::Milliseconds(300);
  options_.offline_after = absl::Milliseconds(900);
  options_.max_rpc_threads = 8;
  StartServer();
  v1::RegisterResponse registered;
  ASSERT_TRUE(Register(&registered).ok());
  const auto list = [&](absl::Duration limit, v1::ListNodesResponse* nodes) {
    v1::ListNodesRequest request;
    request.mutable_version()->set_major(kProtocolMajor);
    return cluster_->ListNodes(Within(limit).get(), request, nodes);
  };
  std::promise<void> held, release;
  std::thread holder([&] {
    server_->registry()->Visit([&](const Node&) {
      held.set_value();
      release.get_future().wait();
    });
  });
  held.get_future().wait();
  std::vector<std::thread> callers;
  for (int i = 0; i < 24; ++i) {
    callers.emplace_back([&] {
      v1::ListNodesResponse nodes;
      list(absl::Seconds(10), &nodes);
    });
  }
  v1::ListNodesResponse blocked;
  EXPECT_FALSE(list(absl::Milliseconds(300), &blocked).ok()) << "the registry was not held";
  int beats = 0;
  const auto beating = v1::Membership::NewStub(NewChannel());
  // Longer than offline_after, let alone three heartbeats.
  const absl::Time end = absl::Now() + absl::Milliseconds(1200);
  while (absl::Now() < end) {
    v1::HeartbeatRequest request;
    request.set_node("a");
    request.set_incarnation(7);
    request.set_sequence(static_cast<uint64_t>(++beats));
    v1::HeartbeatResponse response;
    const grpc::Status status =
        beating->Heartbeat(Within(absl::Seconds(2)).get(), request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(response.known());
    // Answered by its deadline alone.
    EXPECT_FALSE(list(absl::Milliseconds(50), &blocked).ok()) << "the registry was let go";
  }
  EXPECT_GT(beats, 10);
  release.set_value();
  holder.join();
  for (auto& caller : callers) caller.join();
  v1::ListNodesResponse nodes;
  ASSERT_TRUE(list(absl::Seconds(10), &nodes).ok());
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_EQ(nodes.nodes(0).state(), v1::NODE_STATE_ALIVE);
}

TEST_F(Coordinator, GoesOnWithJobsAndLeasesAfterARestart) {
  StartServer();
  v1::RegisterResponse registered;
  ASSERT_TRUE(Register(&registered).ok());
  const std::string id = Submit(2);
  Await(id, v1::JOB_STATE_RUNNING);
  v1::CreatePlanResponse before;
  std::thread other([&] {
    v1::CreatePlanResponse ignored;
    EXPECT_TRUE(plans_->CreatePlan(Within().get(), Profile(id, 1), &ignored).ok());
  });
  ASSERT_TRUE(plans_->CreatePlan(Within().get(), Profile(id, 0), &before).ok());
  other.join();
  StartServer();
  ASSERT_TRUE(Register(&registered).ok());
  EXPECT_EQ(registered.epoch(), 2);
  EXPECT_EQ(registered.release_leases_size(), 0);
  EXPECT_EQ(registered.stop_workers_size(), 0);
  v1::CreatePlanResponse after;
  ASSERT_TRUE(plans_->CreatePlan(Within().get(), Profile(id, 0), &after).ok());
  EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
  v1::CancelJobRequest cancel;
  cancel.set_id(id);
  v1::Job job;
  ASSERT_TRUE(jobs_->CancelJob(Within().get(), cancel, &job).ok());
  Await(id, v1::JOB_STATE_CANCELLED);
}

TEST_F(Coordinator, AnswersBadCallsWithACodeAndASentence) {
  StartServer();
  v1::RegisterResponse registered;
  v1::RegisterRequest old = agent_.Description();
  old.mutable_version()->set_major(9);
  EXPECT_EQ(membership_->Register(Within().get(), old, &registered).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  v1::SubmitJobResponse submitted;
  const grpc::Status ranks = jobs_->SubmitJob(Within().get(), Submission(0), &submitted);
  EXPECT_EQ(ranks.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(ranks.error_message(), "spec.ranks"));
  v1::GetJobRequest get;
  get.set_id("job-none");
  v1::Job job;
  EXPECT_EQ(jobs_->GetJob(Within().get(), get, &job).error_code(), grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(Register(&registered).ok());
  const std::string id = Submit(2);
  Await(id, v1::JOB_STATE_RUNNING);
  v1::CreatePlanRequest stolen = Profile(id, 0);
  stolen.set_job_token(std::string(32, '0'));
  v1::CreatePlanResponse response;
  EXPECT_EQ(plans_->CreatePlan(Within().get(), stolen, &response).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(Coordinator, BoundsTheCallsThatWait) {
  options_.max_waiting_calls = 1;
  StartServer();
  const std::string id = Submit(1);
  v1::Job job;
  v1::GetJobRequest get;
  get.set_id(id);
  for (int i = 0; i < 1000 && job.reason() != "not_enough_gpus"; ++i) {
    ASSERT_TRUE(jobs_->GetJob(Within().get(), get, &job).ok());
  }
  v1::WatchJobRequest request;
  request.set_id(id);
  request.set_after_version(job.version());
  request.set_wait_s(20);
  std::thread waiter([&] {
    v1::Job changed;
    EXPECT_TRUE(jobs_->WatchJob(Within(absl::Seconds(30)).get(), request, &changed).ok());
  });
  while (server_->waiting_calls() < 1) std::this_thread::yield();
  v1::Job seen;
  const grpc::Status refused = jobs_->WatchJob(Within().get(), request, &seen);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::CancelJobRequest cancel;
  cancel.set_id(id);
  ASSERT_TRUE(jobs_->CancelJob(Within().get(), cancel, &job).ok());
  waiter.join();
}

TEST_F(Coordinator, ServesHealthAndItsPages) {
  StartServer();
  v1::RegisterResponse registered;
  ASSERT_TRUE(Register(&registered).ok());
  grpc::GenericStub stub(NewChannel());
  grpc::CompletionQueue queue;
  grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  const auto context = Within();
  auto call = stub.PrepareUnaryCall(context.get(), "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag;
  bool ok;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(absl::StrContains(HttpGet("/livez"), "200"));
  EXPECT_TRUE(absl::StrContains(HttpGet("/readyz"), "ok"));
  EXPECT_TRUE(absl::StrContains(HttpGet("/statusz"), "a ALIVE"));
  const std::string metrics = HttpGet("/metrics");
  EXPECT_TRUE(absl::StrContains(metrics, "hyperframes_nodes{state=\"alive\"} 1")) << metrics;
  EXPECT_TRUE(
      absl::StrContains(metrics, "hyperframes_rpcs_total{code=\"ok\",method=\"Register\"} 1"))
      << metrics;
  for (int scrape = 0; scrape < 2; ++scrape) {
    EXPECT_TRUE(absl::StrContains(HttpGet("/metrics"), "hyperframes_coordinator_stalls_total 0"));
  }
}

TEST_F(Coordinator, RefusesToStartOnContradictionsAndOnAnotherOnesState) {
  StartServer();
  const auto second = CoordinatorServer::Start(options_);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  CoordinatorOptions wide = options_;
  wide.listen_address.host = "0.0.0.0";
  EXPECT_TRUE(absl::IsFailedPrecondition(CoordinatorServer::Start(wide).status()));
  CoordinatorOptions hasty = options_;
  hasty.offline_after = absl::Seconds(1);
  EXPECT_TRUE(absl::IsInvalidArgument(CoordinatorServer::Start(hasty).status()));
}

}  // namespace
}  // namespace hyperframes
