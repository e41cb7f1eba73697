// A coordinator's jobs over scripted agents and a clock that tests advance: two nodes, two GPUs
// each.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_JOB_LIFE_H_
#define HYPERFRAMES_COORDINATOR_JOBS_JOB_LIFE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/fake_agents.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/jobs/worker_reports.h"
#include "coordinator/store/memory_store.h"

namespace hyperframes {

inline v1::JobSpec Spec(int ranks,
                        v1::JobSpec::Placement placement = v1::JobSpec::PLACEMENT_SPREAD) {
  v1::JobSpec spec;
  spec.set_name("train");
  spec.add_command("/bin/true");
  spec.set_ranks(ranks);
  spec.set_placement(placement);
  return spec;
}

class JobLife : public testing::Test {
 protected:
  void SetUp() override {
    Restart();
    Register("a", 1);
    Register("b", 1);
  }
  // A new coordinator over the same store: all memory is gone.
  void Restart() {
    reconciler_.reset();
    ledger_ = std::make_unique<HeartbeatLedger>(&clock_);
    registry_ = std::make_unique<NodeRegistry>(NodeRegistry::Options(), &clock_, ledger_.get());
    book_ = std::move(JobBook::Load(JobBook::Options(), &store_, &clock_)).value();
    reports_ = std::make_unique<WorkerReports>(book_.get());
    Reconciler::Options options;
    options.epoch = ++epoch_;
    reconciler_ =
        std::make_unique<Reconciler>(options, book_.get(), registry_.get(), &agents_, &clock_);
    reconciler_->set_coordinator_address("127.0.0.1:7461");
  }
  // How a node registers, with two GPUs and no worker.
  static v1::RegisterRequest Description(const std::string& node, uint64_t incarnation) {
    v1::RegisterRequest request;
    request.set_node(node);
    request.set_incarnation(incarnation);
    request.set_agent_address(node);
    for (int i = 0; i < 2; ++i) {
      v1::GpuInfo* gpu = request.add_gpus();
      gpu->set_uuid(absl::StrCat("SIM-", node, "-", i));
      gpu->set_index(i);
      gpu->set_total_bytes(1 << 20);
    }
    return request;
  }
  void Register(const std::string& node, uint64_t incarnation) {
    ASSERT_TRUE(registry_->Register(Description(node, incarnation)).ok());
  }
  // What the node's agent says of its first GPU.
  void UseBytes(const std::string& node, int64_t bytes) {
    v1::ReportRequest request;
    request.set_node(node);
    request.set_incarnation(1);
    for (int i = 0; i < 2; ++i) {
      v1::GpuInfo* gpu = request.add_gpus();
      gpu->set_uuid(absl::StrCat("SIM-", node, "-", i));
      gpu->set_index(i);
      gpu->set_total_bytes(1 << 20);
      gpu->set_used_bytes(bytes);
    }
    ASSERT_TRUE(registry_->Report(request).ok());
  }
  std::vector<std::string> Report(const std::string& node) {
    return *reports_->Apply(node, agents_.Workers(node));
  }
  void Pass(int times = 4) {
    for (int i = 0; i < times; ++i) reconciler_->RunOnce();
  }
  std::string SubmitRestartable(int ranks, int max_restarts) {
    v1::JobSpec spec = Spec(ranks);
    spec.set_max_restarts(max_restarts);
    return (*book_->Submit(spec, ""))->id();
  }
  // One worker's end with a count of steps, as its agent tells it.
  void End(const std::string& node, const std::string& worker, int code, int64_t steps = 0,
           double ended_ago_s = 0) {
    agents_.Exit(node, worker, code);
    std::vector<v1::WorkerReport> workers = agents_.Workers(node);
    for (v1::WorkerReport& report : workers) {
      if (report.worker_id() != worker) continue;
      report.set_steps(steps);
      report.set_ended_ago_s(ended_ago_s);
    }
    ASSERT_TRUE(reports_->Apply(node, workers).ok());
  }
  std::string Submit(int ranks) { return (*book_->Submit(Spec(ranks), ""))->id(); }
  JobBook::Record Job(const std::string& id) { return *book_->Get(id); }
  void MakeOffline() {
    for (int i = 0; i < 44; ++i) {
      clock_.Advance(absl::Milliseconds(250));
      registry_->Tick();
    }
  }

  MemoryStore store_;
  FakeClock clock_{absl::FromUnixSeconds(1800000000)};  // Job times are a wall clock's.
  FakeAgents agents_;
  int64_t epoch_ = 0;
  std::unique_ptr<HeartbeatLedger> ledger_;
  std::unique_ptr<NodeRegistry> registry_;
  std::unique_ptr<JobBook> book_;
  std::unique_ptr<WorkerReports> reports_;
  std::unique_ptr<Reconciler> reconciler_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_JOB_LIFE_H_
