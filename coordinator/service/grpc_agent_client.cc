#include "coordinator/service/grpc_agent_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kTransferStart = absl::Seconds(20);  // What its agent gives it.
constexpr size_t kMaxStubs = 20000;  // Twice the nodes of a cluster; past it old ports are dropped.

}  // namespace

std::shared_ptr<v1::Agent::Stub> GrpcAgentClient::StubFor(const std::string& address) {
  MutexLock lock(&mutex_);
  auto found = stubs_.find(address);
  if (found != stubs_.end()) return found->second;
  if (stubs_.size() >= kMaxStubs) stubs_.clear();
  grpc::ChannelArguments arguments;
  // An agent that comes back is asked within a second, not after gRPC's default of minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(4 * 1024 * 1024);
  std::shared_ptr<v1::Agent::Stub> stub = v1::Agent::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  stubs_[address] = stub;
  return stub;
}

template <typename Request, typename Response>
absl::StatusOr<Response> GrpcAgentClient::Call(
    const std::string& address, const Request& request,
    grpc::Status (v1::Agent::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    absl::Duration longer) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(deadline_ + longer));
  Response response;
  const grpc::Status status = ((*StubFor(address)).*method)(&context, request, &response);
  if (!status.ok()) {
    const absl::Status plain = FromGrpc(status);
    return absl::Status(plain.code(), absl::StrCat("agent ", address, ": ", plain.message()));
  }
  return response;
}

absl::StatusOr<v1::WorkerReport> GrpcAgentClient::StartWorker(
    const std::string& address, const v1::StartWorkerRequest& request) {
  HF_ASSIGN_OR_RETURN(const v1::StartWorkerResponse response,
                      Call(address, request, &v1::Agent::Stub::StartWorker));
  return response.worker();
}

absl::StatusOr<v1::WorkerReport> GrpcAgentClient::StopWorker(const std::string& address,
                                                             const v1::StopWorkerRequest& request) {
  HF_ASSIGN_OR_RETURN(const v1::StopWorkerResponse response,
                      Call(address, request, &v1::Agent::Stub::StopWorker));
  return response.worker();
}

absl::StatusOr<v1::AdoptWorkerResponse> GrpcAgentClient::AdoptWorker(
    const std::string& address, const v1::AdoptWorkerRequest& request) {
  return Call(address, request, &v1::Agent::Stub::AdoptWorker);
}

absl::StatusOr<v1::WorkerReport> GrpcAgentClient::DetachWorker(
    const std::string& address, const v1::DetachWorkerRequest& request) {
  HF_ASSIGN_OR_RETURN(const v1::DetachWorkerResponse response,
                      Call(address, request, &v1::Agent::Stub::DetachWorker));
  return response.worker();
}

absl::StatusOr<v1::ReservePortResponse> GrpcAgentClient::ReservePort(
    const std::string& address, const v1::ReservePortRequest& request) {
  return Call(address, request, &v1::Agent::Stub::ReservePort);
}

absl::StatusOr<v1::LeaseResponse> GrpcAgentClient::PrepareLease(
    const std::string& address, const v1::PrepareLeaseRequest& request) {
  // For a rank on another node an hftransfer may have to start, with a context of its own.
  const bool transfers = !request.holder_node().empty();
  return Call(address, request, &v1::Agent::Stub::PrepareLease,
              transfers ? kTransferStart : absl::ZeroDuration());
}

absl::StatusOr<v1::LeaseReport> GrpcAgentClient::CommitLease(const std::string& address,
                                                             const v1::LeaseRequest& request) {
  HF_ASSIGN_OR_RETURN(const v1::LeaseResponse response,
                      Call(address, request, &v1::Agent::Stub::CommitLease));
  return response.lease();
}

absl::StatusOr<v1::LeaseReport> GrpcAgentClient::ReleaseLease(const std::string& address,
                                                              const v1::LeaseRequest& request) {
  HF_ASSIGN_OR_RETURN(const v1::LeaseResponse response,
                      Call(address, request, &v1::Agent::Stub::ReleaseLease));
  return response.lease();
}

absl::StatusOr<v1::LeaseReport> GrpcAgentClient::RevokeLease(
    const std::string& address, const v1::RevokeLeaseRequest& request) {
  HF_ASSIGN_OR_RETURN(const v1::LeaseResponse response,
                      Call(address, request, &v1::Agent::Stub::RevokeLease));
  return response.lease();
}

absl::StatusOr<v1::ReadLogResponse> GrpcAgentClient::ReadWorkerLog(
    const std::string& address, const v1::ReadWorkerLogRequest& request) {
  return Call(address, request, &v1::Agent::Stub::ReadWorkerLog);
}

}  // namespace hyperframes
