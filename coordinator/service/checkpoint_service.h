// Checkpoints over gRPC: conversion, counting, and the bound on calls that wait.
#ifndef HYPERFRAMES_COORDINATOR_SERVICE_CHECKPOINT_SERVICE_H_
#define HYPERFRAMES_COORDINATOR_SERVICE_CHECKPOINT_SERVICE_H_

#include "coordinator/checkpoints/checkpoint_desk.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/waiting_calls.h"
#include "hyperframes/v1/checkpoint.grpc.pb.h"

namespace hyperframes {

class CheckpointsService final : public v1::Checkpoints::Service {
 public:
  // Everything outlives the server.
  CheckpointsService(CheckpointDesk* desk, CoordinatorMetrics* metrics, WaitingCalls* waiting)
      : desk_(desk), metrics_(metrics), waiting_(waiting) {}

  grpc::Status BeginCheckpoint(grpc::ServerContext* context,
                               const v1::BeginCheckpointRequest* request,
                               v1::Checkpoint* response) override;
  grpc::Status PrepareCheckpoint(grpc::ServerContext* context,
                                 const v1::PrepareCheckpointRequest* request,
                                 v1::Checkpoint* response) override;
  grpc::Status CommitCheckpoint(grpc::ServerContext* context,
                                const v1::CommitCheckpointRequest* request,
                                v1::Checkpoint* response) override;
  grpc::Status AbortCheckpoint(grpc::ServerContext* context,
                               const v1::AbortCheckpointRequest* request,
                               v1::Checkpoint* response) override;
  grpc::Status WatchCheckpoint(grpc::ServerContext* context,
                               const v1::WatchCheckpointRequest* request,
                               v1::Checkpoint* response) override;
  grpc::Status RetireCheckpoint(grpc::ServerContext* context,
                                const v1::RetireCheckpointRequest* request,
                                v1::Checkpoint* response) override;
  grpc::Status ListCheckpoints(grpc::ServerContext* context,
                               const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override;

 private:
  // One call of a rank: the version of its caller first.
  template <typename Request>
  grpc::Status OfRank(const char* method, const Request& request,
                      absl::StatusOr<v1::Checkpoint> (CheckpointDesk::*call)(const Request&),
                      v1::Checkpoint* response);
  absl::Status DoWatch(const v1::WatchCheckpointRequest& request, v1::Checkpoint* response);

  CheckpointDesk* const desk_;
  CoordinatorMetrics* const metrics_;
  WaitingCalls* const waiting_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_SERVICE_CHECKPOINT_SERVICE_H_
