#include "client/cpp/fake_coordinator.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace hyperframes {
namespace {

grpc::Status NoSuchJob(const std::string& id) {
  return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job \"" + id + "\"");
}

}  // namespace

class FakeCoordinator::ClusterService final : public v1::Cluster::Service {
 public:
  explicit ClusterService(FakeCoordinator* fake) : fake_(fake) {}
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* response) override {
    grpc::Status scripted;
    if (fake_->Scripted("ListNodes", &scripted)) return scripted;
    MutexLock lock(&fake_->mutex_);
    *response = fake_->nodes_;
    return grpc::Status::OK;
  }

 private:
  FakeCoordinator* const fake_;
};

class FakeCoordinator::JobsService final : public v1::Jobs::Service {
 public:
  explicit JobsService(FakeCoordinator* fake) : fake_(fake) {}

  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override {
    {
      MutexLock lock(&fake_->mutex_);
      fake_->submitted_.push_back(*request);
    }
    grpc::Status scripted;
    if (fake_->Scripted("SubmitJob", &scripted)) return scripted;
    v1::Job* job = response->mutable_job();
    job->set_id("job-1");
    *job->mutable_spec() = request->spec();
    job->set_state(v1::JOB_STATE_QUEUED);
    job->set_reason("waiting_for_gpus");
    job->set_message("waits for 2 free GPUs");
    return grpc::Status::OK;
  }

  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* response) override {
    return Answer("GetJob", request->id(), response);
  }

  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        v1::Job* response) override {
    const auto give_up = std::chrono::steady_clock::now() +
                         std::chrono::milliseconds(static_cast<int>(request->wait_s() * 1000));
    {
      MutexLock lock(&fake_->mutex_);
      auto found = fake_->jobs_.find(request->id());
      if (found != fake_->jobs_.end() && found->second.size() > 1) found->second.pop_front();
    }
    grpc::Status status = Answer("WatchJob", request->id(), response);
    // Nothing new: as long as the real one would.
    while (status.ok() && response->version() == request->after_version() &&
           std::chrono::steady_clock::now() < give_up && !context->IsCancelled()) {
      MutexLock lock(&fake_->mutex_);
      fake_->never_.WaitFor(&fake_->mutex_, absl::Milliseconds(5), [] { return false; });
    }
    return status;
  }

  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                         v1::Job* response) override {
    {
      MutexLock lock(&fake_->mutex_);
      fake_->last_cancel_ = *request;
      auto found = fake_->jobs_.find(request->id());
      if (found != fake_->jobs_.end()) {
        found->second.front().set_state(v1::JOB_STATE_CANCELLED);
        found->second.front().set_reason("cancelled_by_user");
      }
    }
    return Answer("CancelJob", request->id(), response);
  }

  grpc::Status PreemptJob(grpc::ServerContext*, const v1::PreemptJobRequest* request,
                          v1::Job* response) override {
    grpc::Status status = Answer("PreemptJob", request->id(), response);
    response->set_state(v1::JOB_STATE_STOPPING);
    response->set_message(request->signal() ? "preempted by signal" : "preempted");
    return status;
  }

  grpc::Status AttachJob(grpc::ServerContext*, const v1::AttachJobRequest* request,
                         v1::AttachJobResponse* response) override {
    grpc::Status scripted;
    if (fake_->Scripted("AttachJob", &scripted)) return scripted;
    response->set_job_id("job-1");
    (*response->mutable_environment())["HYPERFRAMES_JOB_ID"] = "job-1";
    response->set_worker_id("job-1-1-" + std::to_string(request->rank()));
    return grpc::Status::OK;
  }

  grpc::Status DetachJob(grpc::ServerContext*, const v1::DetachJobRequest* request,
                         v1::Job* response) override {
    return Answer("DetachJob", request->job_id(), response);
  }

  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* response) override {
    grpc::Status scripted;
    if (fake_->Scripted("ListJobs", &scripted)) return scripted;
    MutexLock lock(&fake_->mutex_);
    for (const auto& entry : fake_->jobs_) *response->add_jobs() = entry.second.front();
    return grpc::Status::OK;
  }

  grpc::Status ReadLog(grpc::ServerContext*, const v1::ReadLogRequest* request,
                       v1::ReadLogResponse* response) override {
    grpc::Status scripted;
    if (fake_->Scripted("ReadLog", &scripted)) return scripted;
    MutexLock lock(&fake_->mutex_);
    fake_->last_log_attempt_ = request->attempt();
    auto found = fake_->logs_.find({request->job_id(), request->rank(), request->attempt()});
    if (found == fake_->logs_.end()) {
      found = fake_->logs_.find({request->job_id(), request->rank(), 0});
    }
    if (found == fake_->logs_.end()) return NoSuchJob(request->job_id());
    constexpr size_t kChunk = 16;  // Small, so that every log takes several reads.
    const size_t at = std::min<size_t>(request->offset(), found->second.size());
    response->set_data(found->second.substr(at, kChunk));
    response->set_next_offset(static_cast<int64_t>(at + response->data().size()));
    response->set_complete(at + kChunk >= found->second.size());
    return grpc::Status::OK;
  }

 private:
  grpc::Status Answer(const std::string& method, const std::string& id, v1::Job* response) {
    grpc::Status scripted;
    if (fake_->Scripted(method, &scripted)) return scripted;
    MutexLock lock(&fake_->mutex_);
    const auto found = fake_->jobs_.find(id);
    if (found == fake_->jobs_.end()) return NoSuchJob(id);
    *response = found->second.front();
    return grpc::Status::OK;
  }

  FakeCoordinator* const fake_;
};

class FakeCoordinator::PlansService final : public v1::Plans::Service {
 public:
  explicit PlansService(FakeCoordinator* fake) : fake_(fake) {}

  grpc::Status CreatePlan(grpc::ServerContext* context, const v1::CreatePlanRequest* request,
                          v1::CreatePlanResponse* response) override {
    grpc::Status scripted;
    if (fake_->Scripted("CreatePlan", &scripted)) return scripted;
    MutexLock lock(&fake_->mutex_);
    while (fake_->hold_plans_ && !context->IsCancelled()) {
      fake_->never_.WaitFor(&fake_->mutex_, absl::Milliseconds(5), [] { return false; });
    }
    fake_->last_create_plan_ = *request;
    response->set_plan_id("plan-1");
    response->set_plan_epoch(1);
    return grpc::Status::OK;
  }

  grpc::Status GetPlan(grpc::ServerContext*, const v1::GetPlanRequest* request,
                       v1::FramePlan* response) override {
    grpc::Status scripted;
    if (fake_->Scripted("GetPlan", &scripted)) return scripted;
    MutexLock lock(&fake_->mutex_);
    const auto found = fake_->plans_.find(request->job_id());
    if (found == fake_->plans_.end()) return NoSuchJob(request->job_id());
    *response = found->second;
    return grpc::Status::OK;
  }

 private:
  FakeCoordinator* const fake_;
};

class FakeCoordinator::CheckpointsService final : public v1::Checkpoints::Service {
 public:
  explicit CheckpointsService(FakeCoordinator* fake) : fake_(fake) {}

  // Of the checkpoint that was added first.
  grpc::Status BeginCheckpoint(grpc::ServerContext*, const v1::BeginCheckpointRequest* request,
                               v1::Checkpoint* response) override {
    return OfRank("BeginCheckpoint", *request, "", response);
  }
  grpc::Status PrepareCheckpoint(grpc::ServerContext*, const v1::PrepareCheckpointRequest* request,
                                 v1::Checkpoint* response) override {
    return OfRank("PrepareCheckpoint", *request, request->checkpoint_id(), response);
  }
  grpc::Status CommitCheckpoint(grpc::ServerContext*, const v1::CommitCheckpointRequest* request,
                                v1::Checkpoint* response) override {
    return OfRank("CommitCheckpoint", *request, request->checkpoint_id(), response);
  }
  grpc::Status AbortCheckpoint(grpc::ServerContext*, const v1::AbortCheckpointRequest* request,
                               v1::Checkpoint* response) override {
    return OfRank("AbortCheckpoint", *request, request->checkpoint_id(), response);
  }
  grpc::Status RetireCheckpoint(grpc::ServerContext*, const v1::RetireCheckpointRequest* request,
                                v1::Checkpoint* response) override {
    return OfRank("RetireCheckpoint", *request, request->checkpoint_id(), response);
  }
  grpc::Status WatchCheckpoint(grpc::ServerContext* context,
                               const v1::WatchCheckpointRequest* request,
                               v1::Checkpoint* response) override {
    const auto give_up = std::chrono::steady_clock::now() +
                         std::chrono::milliseconds(static_cast<int>(request->wait_s() * 1000));
    grpc::Status status = Answer("WatchCheckpoint", request->checkpoint_id(), response);
    while (status.ok() && response->state() == request->known() &&
           std::chrono::steady_clock::now() < give_up && !context->IsCancelled()) {
      MutexLock lock(&fake_->mutex_);
      fake_->never_.WaitFor(&fake_->mutex_, absl::Milliseconds(5), [] { return false; });
    }
    return status;
  }

  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override {
    grpc::Status scripted;
    if (fake_->Scripted("ListCheckpoints", &scripted)) return scripted;
    MutexLock lock(&fake_->mutex_);
    fake_->last_list_checkpoints_ = *request;
    for (const v1::Checkpoint& checkpoint : fake_->checkpoints_) {
      if (request->committed_only() && checkpoint.state() != v1::CHECKPOINT_STATE_COMMITTED)
        continue;
      *response->add_checkpoints() = checkpoint;
    }
    return grpc::Status::OK;
  }

 private:
  template <typename Request>
  grpc::Status OfRank(const std::string& method, const Request& request, const std::string& id,
                      v1::Checkpoint* response) {
    {
      MutexLock lock(&fake_->mutex_);
      fake_->last_caller_ = request.caller();
    }
    return Answer(method, id, response);
  }

  grpc::Status Answer(const std::string& method, const std::string& id, v1::Checkpoint* response) {
    grpc::Status scripted;
    if (fake_->Scripted(method, &scripted)) return scripted;
    MutexLock lock(&fake_->mutex_);
    for (const v1::Checkpoint& checkpoint : fake_->checkpoints_) {
      if (!id.empty() && checkpoint.id() != id) continue;
      *response = checkpoint;
      return grpc::Status::OK;
    }
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no checkpoint \"" + id + "\"");
  }

  FakeCoordinator* const fake_;
};

FakeCoordinator::FakeCoordinator(int port)
    : cluster_service_(std::make_unique<ClusterService>(this)),
      jobs_service_(std::make_unique<JobsService>(this)),
      plans_service_(std::make_unique<PlansService>(this)),
      checkpoints_service_(std::make_unique<CheckpointsService>(this)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                           &port_);
  builder.RegisterService(cluster_service_.get());
  builder.RegisterService(jobs_service_.get());
  builder.RegisterService(plans_service_.get());
  builder.RegisterService(checkpoints_service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port_ == 0) std::abort();
}

FakeCoordinator::~FakeCoordinator() { server_->Shutdown(std::chrono::system_clock::now()); }

std::string FakeCoordinator::address() const { return "127.0.0.1:" + std::to_string(port_); }

void FakeCoordinator::Script(const std::string& method, const grpc::Status& status) {
  MutexLock lock(&mutex_);
  script_[method].push_back(status);
}

int FakeCoordinator::calls(const std::string& method) const {
  MutexLock lock(&mutex_);
  const auto found = calls_.find(method);
  return found == calls_.end() ? 0 : found->second;
}

void FakeCoordinator::WaitForCalls(const std::string& method, int count) {
  MutexLock lock(&mutex_);
  called_.Wait(&mutex_, [&]() HF_NO_THREAD_SAFETY_ANALYSIS { return calls_[method] >= count; });
}

void FakeCoordinator::HoldPlans() {
  MutexLock lock(&mutex_);
  hold_plans_ = true;
}

bool FakeCoordinator::Scripted(const std::string& method, grpc::Status* status) {
  MutexLock lock(&mutex_);
  ++calls_[method];
  called_.NotifyAll();
  std::deque<grpc::Status>& queue = script_[method];
  if (queue.empty()) return false;
  *status = queue.front();
  queue.pop_front();
  return !status->ok();
}

void FakeCoordinator::set_nodes(const v1::ListNodesResponse& nodes) {
  MutexLock lock(&mutex_);
  nodes_ = nodes;
}

void FakeCoordinator::ReplaceJob(const v1::Job& job) {
  MutexLock lock(&mutex_);
  jobs_[job.id()] = {job};
}

void FakeCoordinator::AddJob(const v1::Job& job) {
  MutexLock lock(&mutex_);
  jobs_[job.id()].push_back(job);
}

void FakeCoordinator::set_log(const std::string& job_id, int rank, const std::string& data,
                              int attempt) {
  MutexLock lock(&mutex_);
  logs_[{job_id, rank, attempt}] = data;
}

void FakeCoordinator::set_plan(const std::string& job_id, const v1::FramePlan& plan) {
  MutexLock lock(&mutex_);
  plans_[job_id] = plan;
}

std::vector<v1::SubmitJobRequest> FakeCoordinator::submitted() const {
  MutexLock lock(&mutex_);
  return submitted_;
}

void FakeCoordinator::AddCheckpoint(const v1::Checkpoint& checkpoint) {
  MutexLock lock(&mutex_);
  checkpoints_.push_back(checkpoint);
}

v1::CheckpointCaller FakeCoordinator::last_caller() const {
  MutexLock lock(&mutex_);
  return last_caller_;
}

v1::ListCheckpointsRequest FakeCoordinator::last_list_checkpoints() const {
  MutexLock lock(&mutex_);
  return last_list_checkpoints_;
}

int FakeCoordinator::last_log_attempt() const {
  MutexLock lock(&mutex_);
  return last_log_attempt_;
}

v1::CancelJobRequest FakeCoordinator::last_cancel() const {
  MutexLock lock(&mutex_);
  return last_cancel_;
}

v1::CreatePlanRequest FakeCoordinator::last_create_plan() const {
  MutexLock lock(&mutex_);
  return last_create_plan_;
}

}  // namespace hyperframes
