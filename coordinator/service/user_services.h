// Cluster, Jobs and Plans over gRPC: conversion, counting, and the bound on calls that wait.
#ifndef HYPERFRAMES_COORDINATOR_SERVICE_USER_SERVICES_H_
#define HYPERFRAMES_COORDINATOR_SERVICE_USER_SERVICES_H_

#include <cstdint>

#include "coordinator/jobs/agent_client.h"
#include "coordinator/jobs/attach_desk.h"
#include "coordinator/jobs/job_book.h"
#include "coordinator/membership/node_registry.h"
#include "coordinator/plans/plan_desk.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/waiting_calls.h"
#include "hyperframes/v1/coordinator.grpc.pb.h"

namespace hyperframes {

// What the adapters convert for. Everything outlives the server.
struct UserParts {
  NodeRegistry* registry = nullptr;
  JobBook* jobs = nullptr;
  PlanDesk* plans = nullptr;
  AttachDesk* attach = nullptr;
  AgentClient* agents = nullptr;
  CoordinatorMetrics* metrics = nullptr;
  WaitingCalls* waiting = nullptr;
  int64_t epoch = 0;
};

class ClusterService final : public v1::Cluster::Service {
 public:
  explicit ClusterService(UserParts parts) : parts_(parts) {}
  grpc::Status ListNodes(grpc::ServerContext* context, const v1::ListNodesRequest* request,
                         v1::ListNodesResponse* response) override;

 private:
  const UserParts parts_;
};

class JobsService final : public v1::Jobs::Service {
 public:
  explicit JobsService(UserParts parts) : parts_(parts) {}
  grpc::Status SubmitJob(grpc::ServerContext* context, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override;
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                      v1::Job* response) override;
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        v1::Job* response) override;
  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                         v1::Job* response) override;
  grpc::Status PreemptJob(grpc::ServerContext* context, const v1::PreemptJobRequest* request,
                          v1::Job* response) override;
  grpc::Status AttachJob(grpc::ServerContext* context, const v1::AttachJobRequest* request,
                         v1::AttachJobResponse* response) override;
  grpc::Status DetachJob(grpc::ServerContext* context, const v1::DetachJobRequest* request,
                         v1::Job* response) override;
  grpc::Status ReadLog(grpc::ServerContext* context, const v1::ReadLogRequest* request,
                       v1::ReadLogResponse* response) override;

 private:
  // With the workers' counters as their agents last reported them.
  v1::Job Show(const v1::JobRecord& record) const;
  absl::Status DoSubmit(const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response);
  absl::Status DoAttach(const v1::AttachJobRequest& request, v1::AttachJobResponse* response);
  absl::Status DoWatch(const v1::WatchJobRequest& request, v1::Job* response);
  absl::Status DoReadLog(const v1::ReadLogRequest& request, v1::ReadLogResponse* response);
  grpc::Status Answer(const char* method, const absl::StatusOr<JobBook::Record>& record,
                      v1::Job* response);

  const UserParts parts_;
};

class PlansService final : public v1::Plans::Service {
 public:
  explicit PlansService(UserParts parts) : parts_(parts) {}
  grpc::Status CreatePlan(grpc::ServerContext* context, const v1::CreatePlanRequest* request,
                          v1::CreatePlanResponse* response) override;
  grpc::Status GetPlan(grpc::ServerContext* context, const v1::GetPlanRequest* request,
                       v1::FramePlan* response) override;

 private:
  absl::Status DoCreate(const v1::CreatePlanRequest& request, v1::CreatePlanResponse* response);

  const UserParts parts_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_SERVICE_USER_SERVICES_H_
