#include "coordinator/service/checkpoint_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/grpc_status.h"
#include "common/protocol_version.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr double kMaxWatchSeconds = 30;

}  // namespace

template <typename Request>
grpc::Status CheckpointsService::OfRank(
    const char* method, const Request& request,
    absl::StatusOr<v1::Checkpoint> (CheckpointDesk::*call)(const Request&),
    v1::Checkpoint* response) {
  const v1::ProtocolVersion& version = request.caller().version();
  absl::Status status = CheckProtocol(version.major(), version.minor(), "worker");
  if (status.ok()) {
    absl::StatusOr<v1::Checkpoint> checkpoint = (desk_->*call)(request);
    status = checkpoint.status();
    if (status.ok()) *response = *std::move(checkpoint);
  }
  return metrics_->Rpc(method, ToGrpc(status));
}

grpc::Status CheckpointsService::BeginCheckpoint(grpc::ServerContext*,
                                                 const v1::BeginCheckpointRequest* request,
                                                 v1::Checkpoint* response) {
  return OfRank("BeginCheckpoint", *request, &CheckpointDesk::Begin, response);
}

grpc::Status CheckpointsService::PrepareCheckpoint(grpc::ServerContext*,
                                                   const v1::PrepareCheckpointRequest* request,
                                                   v1::Checkpoint* response) {
  return OfRank("PrepareCheckpoint", *request, &CheckpointDesk::Prepare, response);
}

grpc::Status CheckpointsService::CommitCheckpoint(grpc::ServerContext*,
                                                  const v1::CommitCheckpointRequest* request,
                                                  v1::Checkpoint* response) {
  return OfRank("CommitCheckpoint", *request, &CheckpointDesk::Commit, response);
}

grpc::Status CheckpointsService::AbortCheckpoint(grpc::ServerContext*,
                                                 const v1::AbortCheckpointRequest* request,
                                                 v1::Checkpoint* response) {
  return OfRank("AbortCheckpoint", *request, &CheckpointDesk::Abort, response);
}

grpc::Status CheckpointsService::RetireCheckpoint(grpc::ServerContext*,
                                                  const v1::RetireCheckpointRequest* request,
                                                  v1::Checkpoint* response) {
  return OfRank("RetireCheckpoint", *request, &CheckpointDesk::Retire, response);
}

absl::Status CheckpointsService::DoWatch(const v1::WatchCheckpointRequest& request,
                                         v1::Checkpoint* response) {
  if (!(request.wait_s() >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("wait_s ", request.wait_s(), ": 0 to ", kMaxWatchSeconds, " seconds"));
  }
  WaitingCalls::Place place(waiting_);
  HF_RETURN_IF_ERROR(place.status());
  const absl::Duration wait = absl::Seconds(std::min(request.wait_s(), kMaxWatchSeconds));
  HF_ASSIGN_OR_RETURN(*response, desk_->Watch(request.checkpoint_id(), request.known(), wait));
  return absl::OkStatus();
}

grpc::Status CheckpointsService::WatchCheckpoint(grpc::ServerContext*,
                                                 const v1::WatchCheckpointRequest* request,
                                                 v1::Checkpoint* response) {
  return metrics_->Rpc("WatchCheckpoint", ToGrpc(DoWatch(*request, response)));
}

grpc::Status CheckpointsService::ListCheckpoints(grpc::ServerContext*,
                                                 const v1::ListCheckpointsRequest* request,
                                                 v1::ListCheckpointsResponse* response) {
  absl::StatusOr<v1::ListCheckpointsResponse> listed = desk_->List(*request);
  const absl::Status status = listed.status();
  if (status.ok()) *response = *std::move(listed);
  return metrics_->Rpc("ListCheckpoints", ToGrpc(status));
}

}  // namespace hyperframes
