// The agent without a coordinator: its link talks to a membership service of this process.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/arena/descriptor_client.h"
#include "agent/service/agent_service.h"
#include "agent/service/coordinator_link.h"
#include "agent/service/link_report.h"
#include "agent/service/node.h"
#include "agent/service/status_pages.h"
#include "agent/service/worker_environment.h"
#include "common/eventually.h"
#include "common/random_id.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A coordinator's membership, scripted.
class FakeMembership final : public v1::Membership::Service {
 public:
  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    MutexLock lock(&mutex);
    registered.push_back(*request);
    response->mutable_version()->set_major(1);
    response->set_epoch(epoch);
    response->set_heartbeat_interval_s(0.02);
    for (const std::string& worker : stop_workers) response->add_stop_workers(worker);
    known = true;
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*,
                         v1::HeartbeatResponse* response) override {
    MutexLock lock(&mutex);
    ++beats;
    response->set_known(known);
    response->set_epoch(epoch);
    return grpc::Status::OK;
  }
  grpc::Status Report(grpc::ServerContext*, const v1::ReportRequest* request,
                      v1::ReportResponse* response) override {
    MutexLock lock(&mutex);
    reports.push_back(*request);
    changed.Wait(&mutex, [this] { return !hold_reports; });
    response->set_known(known);
    response->set_epoch(epoch);
    for (const std::string& lease : release_leases) response->add_release_leases(lease);
    return grpc::Status::OK;
  }
  size_t Registrations() {
    MutexLock lock(&mutex);
    return registered.size();
  }
  int Beats() {
    MutexLock lock(&mutex);
    return beats;
  }
  bool Reported(const std::function<bool(const v1::ReportRequest&)>& wanted) {
    MutexLock lock(&mutex);
    return std::any_of(reports.begin(), reports.end(), wanted);
  }

  Mutex mutex;
  CondVar changed;
  std::vector<v1::RegisterRequest> registered;
  std::vector<v1::ReportRequest> reports;
  std::vector<std::string> release_leases;
  std::vector<std::string> stop_workers;
  int beats = 0;
  int64_t epoch = 5;
  bool known = true;
  bool hold_reports = false;
};

std::unique_ptr<grpc::Server> Serve(FakeMembership* membership, int* port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(*port), grpc::InsecureServerCredentials(),
                           port);
  builder.RegisterService(membership);
  return builder.BuildAndStart();
}

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() {
    char name[] = "/tmp/hfagent.XXXXXX";
    directory_ = mkdtemp(name);
    StartNode();
  }
  ~AgentTest() override {
    link_.reset();
    if (node_ != nullptr) {
      for (const WorkerInfo& info : node_->supervisor()->Workers()) {
        node_->supervisor()->Stop(info.spec.worker_id, absl::ZeroDuration()).IgnoreError();
        WaitForEnd(info.spec.worker_id);
      }
    }
    service_.reset();
    node_.reset();
    if (system(("rm -rf " + directory_).c_str()) != 0) ADD_FAILURE() << directory_;
  }

  void StartNode() {
    NodeOptions options;
    options.name = "a";
    options.run_directory = directory_;
    options.shim_path = "agent/hfshim";
    options.reserve_bytes = kMiB;
    options.machine.node = "a";
    options.machine.host_bytes = 64 * kMiB;
    options.machine.devices = *ParseHostDevices("2 x 16MiB", "a");
    auto node = Node::Create(options);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = std::move(*node);
    service_ = std::make_unique<AgentService>(node_.get(), &fence_, [this] {
      if (link_ != nullptr) link_->NotifyChanged();
    });
  }
  void StopNode() {
    service_.reset();
    node_.reset();
  }
  void Link(int port) {
    CoordinatorLinkOptions options;
    options.coordinator = "127.0.0.1:" + std::to_string(port);
    options.agent_address = "127.0.0.1:1";
    options.report_interval = absl::Milliseconds(50);
    link_ = std::make_unique<CoordinatorLink>(options, node_.get(), &fence_);
  }
  v1::StartWorkerRequest Script(const std::string& script) {
    v1::StartWorkerRequest request;
    request.set_epoch(5);
    request.set_worker_id("job-1-0");
    request.set_job_id("job");
    request.set_world_size(1);
    request.set_local_world_size(1);
    request.set_gpu("SIM-a-1");
    request.set_master_address("127.0.0.1");
    request.set_master_port(1234);
    request.set_job_token("secret");
    request.set_coordinator_address("127.0.0.1:7461");
    for (const std::string& word : {std::string("bash"), std::string("-c"), script}) {
      request.add_command(word);
    }
    return request;
  }
  v1::PrepareLeaseRequest Lease(const std::string& id, Bytes bytes) {
    v1::PrepareLeaseRequest request;
    request.set_epoch(5);
    request.set_lease_id(id);
    request.set_job_id("job");
    request.set_token(RandomHex(16));
    request.set_device("SIM-a-0");
    request.set_tier(v1::TIER_PEER);
    request.set_bytes(bytes);
    return request;
  }
  // Both phases; the token is returned.
  std::string Lend(const std::string& id, Bytes bytes) {
    const v1::PrepareLeaseRequest prepare = Lease(id, bytes);
    v1::LeaseResponse response;
    EXPECT_TRUE(service_->PrepareLease(nullptr, &prepare, &response).ok());
    v1::LeaseRequest commit;
    commit.set_epoch(5);
    commit.set_lease_id(id);
    EXPECT_TRUE(service_->CommitLease(nullptr, &commit, &response).ok());
    EXPECT_EQ(response.lease().state(), v1::LEASE_STATE_COMMITTED);
    return prepare.token();
  }
  WorkerInfo WaitForEnd(const std::string& id) {
    WorkerInfo found;
    EXPECT_TRUE(Eventually([&] {
      for (const WorkerInfo& info : node_->supervisor()->Workers()) {
        if (info.spec.worker_id == id) found = info;
      }
      return found.status.state == WorkerState::kExited;
    }));
    return found;
  }
  Bytes Lent() { return node_->leases()->Usage()[0].lent_bytes; }

  std::string directory_;
  EpochFence fence_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<AgentService> service_;
  std::unique_ptr<CoordinatorLink> link_;
};

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
        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1234", "TORCHELASTIC_RESTART_COUNT=1",
        "TORCHELASTIC_RUN_ID=job", "HYPERFRAMES_COORDINATOR=127.0.0.1:7461",
        "HYPERFRAMES_JOB_ID=job", "HYPERFRAMES_JOB_TOKEN=secret", "HYPERFRAMES_WORKER_ID=job-1-0",
        "HYPERFRAMES_NODE=a", "HYPERFRAMES_GPU=SIM-a-1", "HYPERFRAMES_BACKEND=host",
        "HYPERFRAMES_HOST_DEVICES=SIM-a-1=16777216@peer=0,host=0,latency=0ns,slowdown=1"}) {
    EXPECT_THAT(log.data(), HasSubstr(std::string(line) + "\n"));
  }
  EXPECT_THAT(log.data(), HasSubstr("HYPERFRAMES_WORKER_SOCKET=" + directory_ + "/agent.sock\n"));
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

TEST_F(AgentTest, TwoAgentsNeverShareARunDirectory) {
  NodeOptions options = node_->options();
  const auto second = Node::Create(options);
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
  auto pages = StatusPages(node_.get(), &none);
  EXPECT_EQ(pages.at("/livez")().code, 200);
  EXPECT_EQ(pages.at("/readyz")().code, 503);
  EXPECT_THAT(pages.at("/metrics")().body,
              HasSubstr("hyperframes_lent_used_bytes{uuid=\"SIM-a-0\"} 1048576\n"));
  EXPECT_THAT(pages.at("/statusz")().body, HasSubstr("\"lease_id\": \"lease\""));
  EXPECT_THAT(pages.at("/statusz")().body, Not(HasSubstr(token)));
}

TEST(MeasureLinks, ReportsWhatItMeasuredOverEveryPath) {
  HostMachineOptions options;
  options.node = "a";
  options.devices = *ParseHostDevices("2 x 64MiB@peer=500MB,host=100MB", "a");
  options.host_bytes = 64 * kMiB;
  const auto machine = HostMachine::Create(options);
  ASSERT_TRUE(machine.ok());
  const std::vector<v1::LinkProfile> links = MeasureLinks(machine->get());
  ASSERT_EQ(links.size(), 6u) << "two between the GPUs, two between each and host memory";
  for (const v1::LinkProfile& link : links) {
    const bool host = link.from() == "host:a" || link.to() == "host:a";
    const double promised = host ? 100e6 : 500e6;
    EXPECT_LT(link.bytes_per_second(), 1.2 * promised) << link.ShortDebugString();
    EXPECT_GT(link.bytes_per_second(), 0.3 * promised) << link.ShortDebugString();
  }
}

}  // namespace
}  // namespace hyperframes
