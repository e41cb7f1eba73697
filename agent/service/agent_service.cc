#include "agent/service/agent_service.h"

#include <algorithm>
#include <string>

#include "agent/service/conversions.h"
#include "agent/service/worker_environment.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kLongestRevokeGrace = absl::Hours(24);

}  // namespace

absl::StatusOr<WorkerSurroundings> AgentService::Surroundings(
    const std::string& gpu_uuid, const std::vector<std::string>& visible) const {
  GpuMachine* const machine = node_->machine();
  for (const std::string& uuid : visible) {
    if (machine->Find(uuid) == nullptr) return NotHere(uuid);
  }
  const Device* const gpu = machine->Find(gpu_uuid);
  if (gpu == nullptr || gpu == machine->host()) return NotHere(gpu_uuid);
  const absl::Status usable = machine->CheckUsable(*gpu);
  if (!usable.ok()) return absl::FailedPreconditionError(usable.message());
  WorkerSurroundings surroundings;
  surroundings.node = node_->options().name;
  surroundings.worker_socket = node_->worker_socket();
  surroundings.device_variables = machine->WorkerVariables(*gpu, visible);
  return surroundings;
}

absl::Status AgentService::NotHere(const std::string& uuid) const {
  return absl::InvalidArgumentError("gpu: '" + uuid.substr(0, 64) + "' is not on node " +
                                    node_->options().name);
}

absl::Status AgentService::Start(const v1::StartWorkerRequest& request, v1::WorkerReport* report) {
  HF_RETURN_IF_ERROR(fence_->Pass(request.epoch()));
  HF_ASSIGN_OR_RETURN(
      WorkerSurroundings surroundings,
      Surroundings(request.gpu(), {request.local_gpus().begin(), request.local_gpus().end()}));
  surroundings.base = OwnEnvironment();
  WorkerSpec spec;
  HF_ASSIGN_OR_RETURN(spec.environment, WorkerEnvironment(request, surroundings));
  spec.worker_id = request.worker_id();
  spec.job_id = request.job_id();
  spec.rank = request.rank();
  spec.gpu = request.gpu();
  spec.command.assign(request.command().begin(), request.command().end());
  spec.working_directory = request.working_directory();
  HF_ASSIGN_OR_RETURN(const WorkerInfo info, node_->StartWorker(spec));
  *report = ToProto(info, node_->counters().Of(spec.worker_id));
  return absl::OkStatus();
}

grpc::Status AgentService::StartWorker(grpc::ServerContext*, const v1::StartWorkerRequest* request,
                                       v1::StartWorkerResponse* response) {
  const absl::Status status = Start(*request, response->mutable_worker());
  changed_();
  return ToGrpc(status);
}

absl::Status AgentService::Adopt(const v1::AdoptWorkerRequest& request,
                                 v1::AdoptWorkerResponse* response) {
  HF_RETURN_IF_ERROR(fence_->Pass(request.epoch()));
  HF_ASSIGN_OR_RETURN(const WorkerSurroundings surroundings, Surroundings(request.gpu(), {}));
  WorkerSpec spec;
  spec.worker_id = request.worker_id();
  spec.job_id = request.job_id();
  spec.rank = request.rank();
  spec.gpu = request.gpu();
  const ProcessIdentity process = {request.process().pid(), request.process().start_time(),
                                   request.process().boot_id()};
  HF_ASSIGN_OR_RETURN(const WorkerInfo info, node_->attached()->Adopt(spec, process));
  *response->mutable_worker() = ToProto(info, node_->counters().Of(spec.worker_id));
  for (const auto& [name, value] : AttachedEnvironment(request, surroundings)) {
    (*response->mutable_environment())[name] = value;
  }
  return absl::OkStatus();
}

grpc::Status AgentService::AdoptWorker(grpc::ServerContext*, const v1::AdoptWorkerRequest* request,
                                       v1::AdoptWorkerResponse* response) {
  const absl::Status status = Adopt(*request, response);
  changed_();
  return ToGrpc(status);
}

grpc::Status AgentService::DetachWorker(grpc::ServerContext*,
                                        const v1::DetachWorkerRequest* request,
                                        v1::DetachWorkerResponse* response) {
  const absl::Status passed = fence_->Pass(request->epoch());
  if (!passed.ok()) return ToGrpc(passed);
  const auto info =
      node_->attached()->Detach(request->worker_id(), request->exit_code(), /*reason=*/"");
  if (!info.ok()) return ToGrpc(info.status());
  *response->mutable_worker() = ToProto(*info, node_->counters().Of(request->worker_id()));
  changed_();
  return grpc::Status::OK;
}

grpc::Status AgentService::StopWorker(grpc::ServerContext*, const v1::StopWorkerRequest* request,
                                      v1::StopWorkerResponse* response) {
  const absl::Status passed = fence_->Pass(request->epoch());
  if (!passed.ok()) return ToGrpc(passed);
  const auto info = node_->StopWorker(request->worker_id(), absl::Seconds(request->grace_s()));
  if (!info.ok()) return ToGrpc(info.status());
  *response->mutable_worker() = ToProto(*info, node_->counters().Of(request->worker_id()));
  changed_();
  return grpc::Status::OK;
}

grpc::Status AgentService::ReservePort(grpc::ServerContext*, const v1::ReservePortRequest* request,
                                       v1::ReservePortResponse* response) {
  const absl::Status passed = fence_->Pass(request->epoch());
  if (!passed.ok()) return ToGrpc(passed);
  const auto port = node_->ports()->Reserve(request->job_id());
  if (!port.ok()) return ToGrpc(port.status());
  response->set_host("127.0.0.1");
  response->set_port(*port);
  return grpc::Status::OK;
}

grpc::Status AgentService::ReadWorkerLog(grpc::ServerContext*,
                                         const v1::ReadWorkerLogRequest* request,
                                         v1::ReadLogResponse* response) {
  auto piece =
      node_->supervisor()->ReadLog(request->worker_id(), request->offset(), request->max_bytes());
  if (!piece.ok()) return ToGrpc(piece.status());
  response->set_data(std::move(piece->data));
  response->set_next_offset(piece->next_offset);
  response->set_complete(piece->complete);
  return grpc::Status::OK;
}

grpc::Status AgentService::PrepareLease(grpc::ServerContext*,
                                        const v1::PrepareLeaseRequest* request,
                                        v1::LeaseResponse* response) {
  const absl::Status passed = fence_->Pass(request->epoch());
  if (!passed.ok()) return ToGrpc(passed);
  const auto wanted = FromProto(*request);
  if (!wanted.ok()) return ToGrpc(wanted.status());
  const auto lease = node_->leases()->Prepare(*wanted);
  if (!lease.ok()) return ToGrpc(lease.status());
  if (!request->holder_node().empty() && request->holder_node() != node_->options().name) {
    const auto address = node_->transfers()->FarAddress(lease->device, lease->lease_id);
    if (!address.ok()) {
      node_->leases()->Release(lease->lease_id, "aborted");
      return ToGrpc(address.status());
    }
    response->set_transfer_address(*address);
  }
  *response->mutable_lease() = ToProto(*lease);
  return grpc::Status::OK;
}

grpc::Status AgentService::CommitLease(grpc::ServerContext*, const v1::LeaseRequest* request,
                                       v1::LeaseResponse* response) {
  const absl::Status passed = fence_->Pass(request->epoch());
  if (!passed.ok()) return ToGrpc(passed);
  const auto lease = node_->leases()->Commit(request->lease_id());
  if (!lease.ok()) return ToGrpc(lease.status());
  *response->mutable_lease() = ToProto(*lease);
  changed_();
  return grpc::Status::OK;
}

grpc::Status AgentService::RevokeLease(grpc::ServerContext*, const v1::RevokeLeaseRequest* request,
                                       v1::LeaseResponse* response) {
  const absl::Status passed = fence_->Pass(request->epoch());
  if (!passed.ok()) return ToGrpc(passed);
  if (!(request->grace_s() >= 0)) {
    return ToGrpc(absl::InvalidArgumentError("grace_s: " + std::to_string(request->grace_s()) +
                                             " is not a time from 0 up"));
  }
  const auto lease = node_->RevokeLease(
      request->lease_id(), std::min(absl::Seconds(request->grace_s()), kLongestRevokeGrace));
  if (!lease.ok()) return ToGrpc(lease.status());
  *response->mutable_lease() = ToProto(*lease);
  changed_();
  return grpc::Status::OK;
}

grpc::Status AgentService::ReleaseLease(grpc::ServerContext*, const v1::LeaseRequest* request,
                                        v1::LeaseResponse* response) {
  const absl::Status passed = fence_->Pass(request->epoch());
  if (!passed.ok()) return ToGrpc(passed);
  node_->leases()->Release(request->lease_id(),
                           request->reason().empty() ? "aborted" : request->reason());
  response->mutable_lease()->set_lease_id(request->lease_id());
  response->mutable_lease()->set_state(v1::LEASE_STATE_RELEASED);
  response->mutable_lease()->set_release_reason(request->reason());
  changed_();
  return grpc::Status::OK;
}

}  // namespace hyperframes
