// The agent without a coordinator: its link talks to a membership service of this process.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "agent/service/agent_fixture.h"
#include "agent/service/conversions.h"
#include "agent/service/link_report.h"
#include "agent/service/status_pages.h"
#include "agent/service/worker_environment.h"
#include "agent/telemetry/counters_page.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RestartsOf, CountsFromTheSecondAttemptOfAJob) {
  EXPECT_EQ(RestartsOf("job-1-0"), 0);
  EXPECT_EQ(RestartsOf("job-with-dashes-3-12"), 2);
  EXPECT_EQ(RestartsOf("unreadable"), 0);
}

TEST_F(AgentTest, StartsAWorkerWithTorchrunsAndItsOwnVariables) {
  const auto request = Script("env");
  v1::StartWorkerResponse response;
  ASSERT_TRUE(service_->StartWorker(nullptr, &request, &response).ok());
  EXPECT_EQ(WaitForEnd("job-1-0").status.exit_code, 0);
  v1::ReadWorkerLogRequest read;
  read.set_worker_id("job-1-0");
  v1::ReadLogResponse log;
  ASSERT_TRUE(service_->ReadWorkerLog(nullptr, &read, &log).ok());
  EXPECT_TRUE(log.complete());
  for (const char* line :
       {"RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=1", "LOCAL_WORLD_SIZE=1", "GROUP_RANK=0",
        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1234", "TORCHELASTIC_RESTART_COUNT=0",
        "TORCHELASTIC_RUN_ID=job", "HYPERFRAMES_COORDINATOR=127.0.0.1:7461",
        "HYPERFRAMES_JOB_ID=job", "HYPERFRAMES_JOB_TOKEN=secret", "HYPERFRAMES_WORKER_ID=job-1-0",
        "HYPERFRAMES_NODE=a", "HYPERFRAMES_GPU=SIM-a-1", "HYPERFRAMES_BACKEND=host",
        "HYPERFRAMES_HOST_DEVICES=SIM-a-1=16777216@peer=0,host=0,latency=0ns,slowdown=1"}) {
    EXPECT_THAT(log.data(), HasSubstr(std::string(line) + "\n"));
  }
  EXPECT_THAT(log.data(), HasSubstr("HYPERFRAMES_WORKER_SOCKET=" + directory_ + "/agent.sock\n"));
}

TEST_F(AgentTest, TheCoordinatorsCountOfRestartsGoesToTheWorker) {
  auto request = Script("echo count $TORCHELASTIC_RESTART_COUNT");
  request.set_worker_id("job-4-0");
  request.set_restart_count(0);
  v1::StartWorkerResponse response;
  ASSERT_TRUE(service_->StartWorker(nullptr, &request, &response).ok());
  WaitForEnd("job-4-0");
  v1::ReadWorkerLogRequest read;
  read.set_worker_id("job-4-0");
  v1::ReadLogResponse log;
  ASSERT_TRUE(service_->ReadWorkerLog(nullptr, &read, &log).ok());
  EXPECT_EQ(log.data(), "count 0\n");
}

TEST_F(AgentTest, TellsWhichOfTwoWorkersEndedFirst) {
  const auto start = [&](const std::string& id, const std::string& script) {
    auto request = Script(script);
    request.set_worker_id(id);
    v1::StartWorkerResponse response;
    ASSERT_TRUE(service_->StartWorker(nullptr, &request, &response).ok());
  };
  const std::string flag = directory_ + "/second-may-end";
  start("job-1-0", "while [ ! -e " + flag + " ]; do sleep 0.01; done; exit 1");
  start("job-1-1", "exit 2");
  const WorkerInfo first = WaitForEnd("job-1-1");
  EXPECT_FALSE(ToProto(node_->supervisor()->Workers()[0], {}).has_ended_ago_s()) << "it runs";
  std::ofstream(flag) << "now";
  const WorkerInfo second = WaitForEnd("job-1-0");
  // Told late, and still in the order of the ends.
  const double second_ago = ToProto(second, {}).ended_ago_s();
  const double first_ago = ToProto(first, {}).ended_ago_s();
  EXPECT_GE(second_ago, 0);
  EXPECT_GT(first_ago, second_ago);
  EXPECT_LT(first_ago, 60);
}

TEST_F(AgentTest, RefusesVariablesThatAreOursAndGpusOfOtherNodes) {
  v1::StartWorkerResponse response;
  for (const char* name : {"RANK", "HYPERFRAMES_JOB_TOKEN", "TORCHELASTIC_RUN_ID", "A=B", ""}) {
    auto request = Script("true");
    (*request.mutable_env())[name] = "1";
    EXPECT_EQ(service_->StartWorker(nullptr, &request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << name;
  }
  for (const char* gpu : {"SIM-b-0", "host:a", ""}) {
    auto request = Script("true");
    request.set_gpu(gpu);
    EXPECT_EQ(service_->StartWorker(nullptr, &request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << gpu;
  }
}

TEST(WorkerEnvironment, TakesPathFromTheAgentButNoneOfItsSettings) {
  v1::StartWorkerRequest request;
  (*request.mutable_env())["HYPERFRAMES_MODE"] = "off";
  WorkerSurroundings surroundings;
  surroundings.base = {{"PATH", "/bin"}, {"HYPERFRAMES_LISTEN_ADDRESS", ":1"}, {"RANK", "7"}};
  const auto environment = WorkerEnvironment(request, surroundings);
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(environment->at("PATH"), "/bin");
  EXPECT_EQ(environment->count("HYPERFRAMES_LISTEN_ADDRESS"), 0u);
  EXPECT_EQ(environment->at("RANK"), "0");
  EXPECT_EQ(environment->at("HYPERFRAMES_MODE"), "off") << "a job may configure its own library";
}

TEST(WorkerEnvironment, TakesTheNodesNumberFromTheCoordinatorWhichKnowsUnevenPacking) {
  // The third rank, alone on the second of two nodes.
  v1::StartWorkerRequest request;
  request.set_rank(2);
  request.set_world_size(3);
  request.set_local_world_size(1);
  request.set_group_rank(1);
  EXPECT_EQ(WorkerEnvironment(request, {})->at("GROUP_RANK"), "1");
}

TEST_F(AgentTest, RefusesAnOlderEpochOnEveryCallThatChangesSomething) {
  ASSERT_TRUE(fence_.Pass(6).ok());
  v1::LeaseResponse lease;
  v1::StartWorkerResponse start;
  const auto prepare = Lease("lease", kMiB);
  const auto worker = Script("true");
  v1::LeaseRequest named;
  named.set_epoch(5);
  named.set_lease_id("lease");
  EXPECT_EQ(service_->PrepareLease(nullptr, &prepare, &lease).error_code(),
            grpc::StatusCode::ABORTED);
  EXPECT_EQ(service_->CommitLease(nullptr, &named, &lease).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(service_->ReleaseLease(nullptr, &named, &lease).error_code(),
            grpc::StatusCode::ABORTED);
  EXPECT_EQ(Revoke("lease", 1, &lease).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(service_->StartWorker(nullptr, &worker, &start).error_code(),
            grpc::StatusCode::ABORTED);
  v1::StopWorkerRequest stop;
  v1::StopWorkerResponse stopped;
  EXPECT_EQ(service_->StopWorker(nullptr, &stop, &stopped).error_code(), grpc::StatusCode::ABORTED);
  v1::ReservePortRequest reserve;
  v1::ReservePortResponse port;
  EXPECT_EQ(service_->ReservePort(nullptr, &reserve, &port).error_code(),
            grpc::StatusCode::ABORTED);
  EXPECT_EQ(Lent(), 0);
}

TEST_F(AgentTest, GivesAnEndedWorkersLeasesBackAndReportsBoth) {
  FakeMembership membership;
  int port = 0;
  const auto server = Serve(&membership, &port);
  Link(port);
  const auto request = Script("echo $$ > " + directory_ + "/ready; exec sleep 600");
  v1::StartWorkerResponse response;
  ASSERT_TRUE(service_->StartWorker(nullptr, &request, &response).ok());
  Lend("lease", kMiB);
  const auto running = [&](const v1::ReportRequest& report) {
    return report.workers_size() == 1 && report.leases_size() == 1 &&
           report.workers(0).state() == v1::WORKER_STATE_RUNNING;
  };
  ASSERT_TRUE(Eventually([&] { return membership.Reported(running); }));
  const pid_t pid = node_->supervisor()->Workers()[0].status.worker.pid;
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] { return Lent() == 0; }, absl::Seconds(2)));
  EXPECT_TRUE(Eventually([&] {
    return membership.Reported([](const v1::ReportRequest& report) {
      return report.workers_size() == 1 && report.workers(0).term_signal() == SIGKILL &&
             report.leases_size() == 1 && report.leases(0).release_reason() == "worker_died";
    });
  }));
  EXPECT_TRUE(Eventually([&] { return node_->leases()->Report().empty(); }))
      << "what was answered is not told again";
  server->Shutdown();
}

TEST_F(AgentTest, RegistersWithEverythingItHasAndAgainWithinASecondWhenItIsNotKnown) {
  FakeMembership membership;
  int port = 0;
  const auto server = Serve(&membership, &port);
  Lend("lease", kMiB);
  Link(port);
  ASSERT_TRUE(Eventually([&] { return membership.Registrations() == 1; }));
  {
    MutexLock lock(&membership.mutex);
    const v1::RegisterRequest& request = membership.registered[0];
    EXPECT_EQ(request.node(), "a");
    EXPECT_EQ(request.incarnation(), link_->incarnation());
    ASSERT_EQ(request.gpus_size(), 2);
    EXPECT_EQ(request.gpus(0).uuid(), "SIM-a-0");
    EXPECT_EQ(request.gpus(0).lent_bytes(), kMiB);
    EXPECT_EQ(request.gpus(0).reserve_bytes(), kMiB);
    EXPECT_EQ(request.host_lendable_bytes(), 64 * kMiB);
    ASSERT_EQ(request.leases_size(), 1);
    EXPECT_THAT(request.ShortDebugString(), Not(HasSubstr("token")));
  }
  ASSERT_TRUE(Eventually([&] { return membership.Beats() > 0; }));
  {
    MutexLock lock(&membership.mutex);
    membership.known = false;
  }
  EXPECT_TRUE(Eventually([&] { return membership.Registrations() == 2; }, absl::Seconds(1)));
  server->Shutdown();
}

TEST_F(AgentTest, RegistersWithinFiveSecondsOfTheCoordinatorsReturn) {
  FakeMembership membership;
  int port = 0;
  auto server = Serve(&membership, &port);
  Link(port);
  ASSERT_TRUE(Eventually([&] { return link_->state().registered; }));
  server->Shutdown();
  server.reset();
  ASSERT_TRUE(Eventually([&] { return !link_->state().last_error.empty(); }));
  Lend("lease", kMiB);
  EXPECT_EQ(Lent(), kMiB) << "the node does not need its coordinator";
  FakeMembership successor;
  successor.known = false;
  server = Serve(&successor, &port);
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(Eventually([&] { return successor.Registrations() == 1; }, absl::Seconds(5)));
  server->Shutdown();
}

TEST_F(AgentTest, BeatsOnWhileAReportHangs) {
  FakeMembership membership;
  membership.hold_reports = true;
  int port = 0;
  const auto server = Serve(&membership, &port);
  Link(port);
  ASSERT_TRUE(Eventually([&] { return membership.Reported([](const auto&) { return true; }); }));
  const int before = membership.Beats();
  EXPECT_TRUE(Eventually([&] { return membership.Beats() > before + 10; }));
  {
    MutexLock lock(&membership.mutex);
    membership.hold_reports = false;
    membership.changed.NotifyAll();
  }
  server->Shutdown();
}

TEST_F(AgentTest, ReleasesWhatTheCoordinatorNoLongerWants) {
  FakeMembership membership;
  membership.release_leases = {"lease", "unknown"};
  int port = 0;
  const auto server = Serve(&membership, &port);
  Lend("lease", kMiB);
  Link(port);
  EXPECT_TRUE(Eventually([&] { return Lent() == 0; }));
  server->Shutdown();
}

TEST_F(AgentTest, ARestartedAgentHasTheSameLeasesAndWorkers) {
  const auto request = Script("sleep 600");
  v1::StartWorkerResponse response;
  ASSERT_TRUE(service_->StartWorker(nullptr, &request, &response).ok());
  const std::string token = Lend("lease", kMiB);
  DescriptorClientOptions options;
  options.socket_path = node_->worker_socket();
  options.worker_id = "job-1-0";
  options.reconnect_interval = absl::Milliseconds(10);
  auto client = DescriptorClient::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  auto mapped = (*client)->MapLease("lease", token);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  UniqueFd memory(mapped->descriptor);
  StopNode();
  StartNode();
  EXPECT_EQ(Lent(), kMiB) << "at once, before anybody has reported";
  const auto wanted = Lease("new", kMiB);
  ASSERT_TRUE(Eventually([&] { return !node_->leases()->Usage()[0].awaiting_workers; }));
  v1::LeaseResponse lease;
  EXPECT_TRUE(service_->PrepareLease(nullptr, &wanted, &lease).ok());
  ASSERT_EQ(node_->supervisor()->Workers().size(), 1u);
  EXPECT_TRUE(node_->supervisor()->Workers()[0].adopted);
}

TEST_F(AgentTest, AWorkersLastCountersStayUntilItsEndIsAcknowledged) {
  const auto request = Script("until [ -e " + directory_ + "/go ]; do sleep 0.01; done");
  v1::StartWorkerResponse started;
  ASSERT_TRUE(service_->StartWorker(nullptr, &request, &started).ok());
  UniqueFd page(memfd_create("counters", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(page.get(), kCountersPageBytes), 0);
  auto* const counters = static_cast<CountersPage*>(
      mmap(nullptr, kCountersPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page.get(), 0));
  ASSERT_NE(counters, MAP_FAILED);
  counters->magic = kCountersMagic;
  counters->version = kCountersVersion;
  auto client = Borrower("job-1-0", page.get());
  counters->steps = 3;
  counters->activation_bytes = 100;
  EXPECT_TRUE(Eventually([&] { return node_->counters().Of("job-1-0").steps == 3; }));
  counters->steps = 7;
  counters->activation_peak_bytes = 200;
  FakeMembership membership;
  int port = 0;
  const auto server = Serve(&membership, &port);
  Link(port);
  const auto told = [&](v1::WorkerState state) {
    return Eventually([&] {
      return membership.Reported([&](const v1::ReportRequest& report) {
        return report.workers_size() == 1 && report.workers(0).state() == state &&
               report.workers(0).steps() == 7 && report.workers(0).activation_bytes() == 100 &&
               report.workers(0).activation_peak_bytes() == 200;
      });
    });
  };
  EXPECT_TRUE(told(v1::WORKER_STATE_RUNNING)) << "live, while it runs";
  std::ofstream(directory_ + "/go") << "go";
  EXPECT_TRUE(told(v1::WORKER_STATE_EXITED)) << "the last ones, with its end";
  EXPECT_TRUE(Eventually([&] { return node_->counters().Of("job-1-0").steps == 0; }))
      << "nothing is kept of what the coordinator knows";
  munmap(counters, kCountersPageBytes);
  server->Shutdown();
}

TEST(EpochFence, OutlivesItsAgentAndSaysHowToStartOver) {
  char name[] = "/tmp/hffence.XXXXXX";
  const std::string path = std::string(mkdtemp(name)) + "/epoch";
  {
    EpochFence fence;
    ASSERT_TRUE(fence.Open(path).ok());
    EXPECT_TRUE(fence.Pass(7).ok());
  }
  EpochFence fence;
  ASSERT_TRUE(fence.Open(path).ok());
  EXPECT_EQ(fence.newest(), 7);
  const absl::Status refused = fence.Pass(6);
  EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("delete " + path));
  EXPECT_TRUE(fence.Pass(7).ok());
  std::ofstream(path) << "many";
  EXPECT_EQ(EpochFence().Open(path).code(), absl::StatusCode::kDataLoss);
  unlink(path.c_str());
  EXPECT_EQ(fence.Pass(6).code(), absl::StatusCode::kAborted) << "not while it runs";
  EpochFence fresh;
  EXPECT_TRUE(fresh.Open(path).ok());
  EXPECT_TRUE(fresh.Pass(1).ok());
  unlink(path.c_str());
  rmdir(name);
}

TEST_F(AgentTest, TwoAgentsNeverShareARunDirectory) {
  NodeOptions options = node_->options();
  HostMachineOptions machine = {"a", *ParseHostDevices("1GiB", "a"), 0};
  const auto second = Node::Create(options, *HostMachine::Create(std::move(machine)));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
}

TEST_F(AgentTest, HoldsOnePortForAJob) {
  v1::ReservePortRequest request;
  request.set_epoch(5);
  request.set_job_id("job");
  v1::ReservePortResponse first, again, other;
  ASSERT_TRUE(service_->ReservePort(nullptr, &request, &first).ok());
  ASSERT_TRUE(service_->ReservePort(nullptr, &request, &again).ok());
  request.set_job_id("other");
  ASSERT_TRUE(service_->ReservePort(nullptr, &request, &other).ok());
  EXPECT_EQ(first.port(), again.port());
  EXPECT_NE(first.port(), other.port());
  EXPECT_EQ(first.host(), "127.0.0.1");
}

TEST_F(AgentTest, ServesPagesWithoutSecrets) {
  const std::string token = Lend("lease", kMiB);
  std::atomic<CoordinatorLink*> none{nullptr};
  auto pages = StatusPages(node_.get(), &none, /*survey=*/nullptr);
  EXPECT_EQ(pages.at("/livez")().code, 200);
  EXPECT_EQ(pages.at("/readyz")().code, 503);
  EXPECT_THAT(pages.at("/metrics")().body,
              HasSubstr("hyperframes_lent_used_bytes{uuid=\"SIM-a-0\"} 1048576\n"));
  EXPECT_THAT(pages.at("/statusz")().body, HasSubstr("\"lease_id\": \"lease\""));
  EXPECT_THAT(pages.at("/statusz")().body, Not(HasSubstr(token)));
}

TEST_F(AgentTest, RegistersAgainWithLinksThatAreKnownLater) {
  FakeMembership membership;
  int port = 0;
  const auto server = Serve(&membership, &port);
  Link(port);
  ASSERT_TRUE(Eventually([&] { return membership.Registrations() == 1; }));
  v1::LinkProfile link;
  link.set_from("SIM-a-0");
  for (const double speed : {1e9, 1e9, 2e9}) {  // The same again is no news.
    link.set_bytes_per_second(speed);
    link_->SetLinks({link});
  }
  const auto last = [&membership] {
    MutexLock lock(&membership.mutex);
    const v1::RegisterRequest& request = membership.registered.back();
    return request.links_size() == 1 ? request.links(0).bytes_per_second() : 0;
  };
  EXPECT_TRUE(Eventually([&] { return last() == 2e9; }));
  const size_t registrations = membership.Registrations();
  EXPECT_LE(registrations, 3u);
  link_->SetLinks({link});
  link_->SetLinks({});
  EXPECT_TRUE(Eventually([&] { return last() == 0; }));
  EXPECT_EQ(membership.Registrations(), registrations + 1);
}

TEST(MeasureLinks, ReportsWhatItMeasuredOverEveryPath) {
  HostMachineOptions options;
  options.node = "a";
  options.devices = *ParseHostDevices("2 x 64MiB@peer=500MB,host=100MB", "a");
  options.host_bytes = 64 * kMiB;
  const auto machine = HostMachine::Create(options);
  ASSERT_TRUE(machine.ok());
  // A busy machine may take the processor away in the middle of any measurement, not of all.
  std::string wrong;
  for (int attempt = 0; attempt < 50 && (attempt == 0 || !wrong.empty()); ++attempt) {
    wrong.clear();
    const LinkReport report = MeasureLinks(**machine);
    ASSERT_TRUE(report.unmeasured.empty());
    ASSERT_EQ(report.links.size(), 6u) << "two between the GPUs, two between each and host memory";
    for (const v1::LinkProfile& link : report.links) {
      const bool host = link.from() == "host:a" || link.to() == "host:a";
      const double promised = host ? 100e6 : 500e6;
      const double share = link.bytes_per_second() / promised;
      if (share > 1.2 || share < 0.3) wrong += link.ShortDebugString() + "; ";
    }
  }
  EXPECT_EQ(wrong, "");
}

}  // namespace
}  // namespace hyperframes
