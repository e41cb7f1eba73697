#include "coordinator/service/user_services.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/grpc_status.h"
#include "common/protocol_version.h"
#include "common/status_macros.h"
#include "coordinator/jobs/attempts.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/membership/node_state.h"

namespace hyperframes {
namespace {

constexpr double kMaxWatchSeconds = 30;
constexpr int64_t kDefaultLogBytes = int64_t{64} * 1024;
constexpr int64_t kMaxLogBytes = int64_t{1024} * 1024;

}  // namespace

grpc::Status ClusterService::ListNodes(grpc::ServerContext*, const v1::ListNodesRequest* request,
                                       v1::ListNodesResponse* response) {
  const absl::Status version =
      CheckProtocol(request->version().major(), request->version().minor(), "client");
  if (version.ok()) {
    response->set_epoch(parts_.epoch);
    for (Node& node : parts_.registry->List()) *response->add_nodes() = std::move(node.info);
  }
  return parts_.metrics->Rpc("ListNodes", ToGrpc(version));
}

v1::Job JobsService::Show(const v1::JobRecord& record) const {
  v1::Job job = ToJob(record, parts_.jobs->wall_now());
  for (v1::JobWorker& worker : *job.mutable_workers()) {
    const absl::StatusOr<Node> node = parts_.registry->Find(worker.node());
    if (!node.ok()) continue;
    for (const v1::WorkerReport& report : node->info.workers()) {
      if (report.worker_id() != worker.report().worker_id()) continue;
      worker.mutable_report()->set_age_s(report.age_s());
      worker.mutable_report()->set_activation_bytes(report.activation_bytes());
      worker.mutable_report()->set_activation_peak_bytes(report.activation_peak_bytes());
      worker.mutable_report()->set_steps(report.steps());
    }
  }
  return job;
}

grpc::Status JobsService::Answer(const char* method, const absl::StatusOr<JobBook::Record>& record,
                                 v1::Job* response) {
  if (record.ok()) *response = Show(**record);
  return parts_.metrics->Rpc(method, ToGrpc(record.status()));
}

absl::Status JobsService::DoSubmit(const v1::SubmitJobRequest& request,
                                   v1::SubmitJobResponse* response) {
  HF_RETURN_IF_ERROR(CheckProtocol(request.version().major(), request.version().minor(), "client"));
  HF_ASSIGN_OR_RETURN(const JobBook::Record record,
                      parts_.jobs->Submit(request.spec(), request.idempotency_key()));
  *response->mutable_job() = Show(*record);
  return absl::OkStatus();
}

grpc::Status JobsService::SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                                    v1::SubmitJobResponse* response) {
  return parts_.metrics->Rpc("SubmitJob", ToGrpc(DoSubmit(*request, response)));
}

grpc::Status JobsService::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                                 v1::Job* response) {
  return Answer("GetJob", parts_.jobs->Get(request->id()), response);
}

grpc::Status JobsService::ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                                   v1::ListJobsResponse* response) {
  if (request->limit() < 0 || request->limit() > 1000) {
    return parts_.metrics->Rpc(
        "ListJobs", ToGrpc(absl::InvalidArgumentError(
                        absl::StrCat("limit ", request->limit(), ": 0 (reads as 100) to 1000"))));
  }
  const size_t limit = request->limit() == 0 ? 100 : static_cast<size_t>(request->limit());
  for (const JobBook::Record& record : parts_.jobs->List(limit)) {
    *response->add_jobs() = ToJob(*record, parts_.jobs->wall_now());
  }
  return parts_.metrics->Rpc("ListJobs", grpc::Status::OK);
}

absl::Status JobsService::DoWatch(const v1::WatchJobRequest& request, v1::Job* response) {
  if (!(request.wait_s() >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("wait_s ", request.wait_s(), ": 0 to ", kMaxWatchSeconds, " seconds"));
  }
  WaitingCalls::Place place(parts_.waiting);
  HF_RETURN_IF_ERROR(place.status());
  const absl::Duration wait = absl::Seconds(std::min(request.wait_s(), kMaxWatchSeconds));
  HF_ASSIGN_OR_RETURN(const JobBook::Record record,
                      parts_.jobs->Watch(request.id(), request.after_version(), wait));
  *response = Show(*record);
  return absl::OkStatus();
}

grpc::Status JobsService::WatchJob(grpc::ServerContext*, const v1::WatchJobRequest* request,
                                   v1::Job* response) {
  return parts_.metrics->Rpc("WatchJob", ToGrpc(DoWatch(*request, response)));
}

grpc::Status JobsService::CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                                    v1::Job* response) {
  return Answer("CancelJob", parts_.jobs->Cancel(request->id(), request->signal()), response);
}

grpc::Status JobsService::PreemptJob(grpc::ServerContext*, const v1::PreemptJobRequest* request,
                                     v1::Job* response) {
  return Answer("PreemptJob", parts_.jobs->Preempt(request->id(), request->signal()), response);
}

absl::Status JobsService::DoAttach(const v1::AttachJobRequest& request,
                                   v1::AttachJobResponse* response) {
  HF_RETURN_IF_ERROR(CheckProtocol(request.version().major(), request.version().minor(), "worker"));
  HF_ASSIGN_OR_RETURN(*response, parts_.attach->Attach(request));
  return absl::OkStatus();
}

grpc::Status JobsService::AttachJob(grpc::ServerContext*, const v1::AttachJobRequest* request,
                                    v1::AttachJobResponse* response) {
  return parts_.metrics->Rpc("AttachJob", ToGrpc(DoAttach(*request, response)));
}

grpc::Status JobsService::DetachJob(grpc::ServerContext*, const v1::DetachJobRequest* request,
                                    v1::Job* response) {
  return Answer("DetachJob", parts_.attach->Detach(*request), response);
}

absl::Status JobsService::DoReadLog(const v1::ReadLogRequest& request,
                                    v1::ReadLogResponse* response) {
  HF_ASSIGN_OR_RETURN(const JobBook::Record job, parts_.jobs->Get(request.job_id()));
  HF_ASSIGN_OR_RETURN(const LogPlace place, FindLog(*job, request.attempt(), request.rank()));
  if (request.offset() < 0 || request.max_bytes() < 0 || request.max_bytes() > kMaxLogBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "offset ", request.offset(), ", max_bytes ", request.max_bytes(),
        ": offset 0 or more, max_bytes 0 (reads as ", kDefaultLogBytes, ") to ", kMaxLogBytes));
  }
  response->set_next_offset(request.offset());
  const bool ended = IsFinalJobState(job->state());
  if (place.node.empty()) {
    response->set_complete(ended);  // Nothing was ever written, or nothing yet.
    return absl::OkStatus();
  }
  const absl::StatusOr<Node> node = parts_.registry->Find(place.node);
  if (!node.ok() || node->info.state() == v1::NODE_STATE_OFFLINE) {
    return absl::UnavailableError(absl::StrCat("the log of rank ", request.rank(), " is on node ",
                                               place.node, ", which cannot be asked now (",
                                               node.ok() ? "OFFLINE" : "not registered yet",
                                               "); try again when its agent is back"));
  }
  v1::ReadWorkerLogRequest read;
  read.set_worker_id(place.worker_id);
  read.set_offset(request.offset());
  read.set_max_bytes(request.max_bytes() == 0 ? kDefaultLogBytes : request.max_bytes());
  HF_ASSIGN_OR_RETURN(*response, parts_.agents->ReadWorkerLog(node->info.agent_address(), read));
  return absl::OkStatus();
}

grpc::Status JobsService::ReadLog(grpc::ServerContext*, const v1::ReadLogRequest* request,
                                  v1::ReadLogResponse* response) {
  return parts_.metrics->Rpc("ReadLog", ToGrpc(DoReadLog(*request, response)));
}

absl::Status PlansService::DoCreate(const v1::CreatePlanRequest& request,
                                    v1::CreatePlanResponse* response) {
  HF_RETURN_IF_ERROR(CheckProtocol(request.version().major(), request.version().minor(), "worker"));
  WaitingCalls::Place place(parts_.waiting);
  HF_RETURN_IF_ERROR(place.status());
  HF_ASSIGN_OR_RETURN(*response, parts_.plans->CreatePlan(request));
  return absl::OkStatus();
}

grpc::Status PlansService::CreatePlan(grpc::ServerContext*, const v1::CreatePlanRequest* request,
                                      v1::CreatePlanResponse* response) {
  return parts_.metrics->Rpc("CreatePlan", ToGrpc(DoCreate(*request, response)));
}

grpc::Status PlansService::GetPlan(grpc::ServerContext*, const v1::GetPlanRequest* request,
                                   v1::FramePlan* response) {
  const absl::StatusOr<v1::FramePlan> plan = parts_.plans->GetPlan(request->job_id());
  if (plan.ok()) *response = *plan;
  return parts_.metrics->Rpc("GetPlan", ToGrpc(plan.status()));
}

}  // namespace hyperframes
