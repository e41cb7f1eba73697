// A coordinator for tests of clients: real gRPC on a loopback port, canned answers, and a script of
// failures. Linked into tests only.
#ifndef HYPERFRAMES_CLIENT_CPP_FAKE_COORDINATOR_H_
#define HYPERFRAMES_CLIENT_CPP_FAKE_COORDINATOR_H_

#include <grpcpp/server.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "hyperframes/v1/checkpoint.grpc.pb.h"
#include "hyperframes/v1/coordinator.grpc.pb.h"

namespace hyperframes {

// Thread-safe. A test sets what it answers, and reads back what it was asked.
class FakeCoordinator {
 public:
  // Listens on 127.0.0.1, `port` 0: any. Aborts when it cannot.
  explicit FakeCoordinator(int port = 0);
  ~FakeCoordinator();

  std::string address() const;
  int port() const { return port_; }

  // The next call of `method` ("GetJob") answers with the oldest scripted status instead of a
  // result. An OK status in the script lets one call through.
  void Script(const std::string& method, const grpc::Status& status);
  int calls(const std::string& method) const;
  void WaitForCalls(const std::string& method, int count);
  // CreatePlan is not answered any more, as while other ranks are missing, until this one goes.
  void HoldPlans();

  void set_nodes(const v1::ListNodesResponse& nodes);
  // Jobs by id. A job with several entries moves to the next one with each WatchJob.
  void AddJob(const v1::Job& job);
  void ReplaceJob(const v1::Job& job);
  // `attempt` 0: of every attempt that has none of its own.
  void set_log(const std::string& job_id, int rank, const std::string& data, int attempt = 0);
  void set_plan(const std::string& job_id, const v1::FramePlan& plan);
  // By id; listed in the order in which they were added. Calls answer with them as they are.
  void AddCheckpoint(const v1::Checkpoint& checkpoint);
  v1::CheckpointCaller last_caller() const;
  v1::ListCheckpointsRequest last_list_checkpoints() const;
  std::vector<v1::SubmitJobRequest> submitted() const;
  v1::CreatePlanRequest last_create_plan() const;
  v1::CancelJobRequest last_cancel() const;
  int last_log_attempt() const;

 private:
  class ClusterService;
  class JobsService;
  class PlansService;
  class CheckpointsService;

  // Counts the call; true when the script has a failure for it, which is then in `status`.
  bool Scripted(const std::string& method, grpc::Status* status);

  mutable Mutex mutex_;
  CondVar never_;  // Nobody notifies it: a timed wait for calls that watch.
  CondVar called_;
  bool hold_plans_ HF_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::deque<grpc::Status>> script_ HF_GUARDED_BY(mutex_);
  std::map<std::string, int> calls_ HF_GUARDED_BY(mutex_);
  v1::ListNodesResponse nodes_ HF_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<v1::Job>> jobs_ HF_GUARDED_BY(mutex_);
  std::map<std::tuple<std::string, int, int>, std::string> logs_ HF_GUARDED_BY(mutex_);
  std::map<std::string, v1::FramePlan> plans_ HF_GUARDED_BY(mutex_);
  std::vector<v1::SubmitJobRequest> submitted_ HF_GUARDED_BY(mutex_);
  v1::CreatePlanRequest last_create_plan_ HF_GUARDED_BY(mutex_);
  std::vector<v1::Checkpoint> checkpoints_ HF_GUARDED_BY(mutex_);
  v1::CheckpointCaller last_caller_ HF_GUARDED_BY(mutex_);
  v1::ListCheckpointsRequest last_list_checkpoints_ HF_GUARDED_BY(mutex_);
  v1::CancelJobRequest last_cancel_ HF_GUARDED_BY(mutex_);
  int last_log_attempt_ HF_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<ClusterService> cluster_service_;
  std::unique_ptr<JobsService> jobs_service_;
  std::unique_ptr<PlansService> plans_service_;
  std::unique_ptr<CheckpointsService> checkpoints_service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CPP_FAKE_COORDINATOR_H_
