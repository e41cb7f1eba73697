// Calls to a coordinator by name, messages as JSON. One table says which calls exist.
#include "client/cpp/client.h"

#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_join.h"
#include "client/c/boundary.h"
#include "client/c/hyperframes.h"
#include "client/c/json_options.h"
#include "client/cpp/message_json.h"
#include "common/status_macros.h"

struct hf_client {
  std::unique_ptr<hyperframes::Client> client;
};

namespace hyperframes {
namespace {

using JsonCall = absl::StatusOr<std::string> (*)(Client* client, const std::string& request_json,
                                                 absl::Duration timeout);

// One typed method of Client as JSON in, JSON out.
template <typename Request, typename Response,
          absl::StatusOr<Response> (Client::*Method)(const Request&, absl::Duration)>
absl::StatusOr<std::string> CallAsJson(Client* client, const std::string& request_json,
                                       absl::Duration timeout) {
  Request request;
  HF_RETURN_IF_ERROR(ParseMessage(request_json, "request_json", &request));
  HF_ASSIGN_OR_RETURN(const Response response, (client->*Method)(request, timeout));
  return WriteMessage(response);
}

struct MethodEntry {
  const char* name;
  JsonCall call;
};

constexpr MethodEntry kMethods[] = {
    {"AbortCheckpoint",
     &CallAsJson<v1::AbortCheckpointRequest, v1::Checkpoint, &Client::AbortCheckpoint>},
    {"AttachJob", &CallAsJson<v1::AttachJobRequest, v1::AttachJobResponse, &Client::AttachJob>},
    {"BeginCheckpoint",
     &CallAsJson<v1::BeginCheckpointRequest, v1::Checkpoint, &Client::BeginCheckpoint>},
    {"CancelJob", &CallAsJson<v1::CancelJobRequest, v1::Job, &Client::CancelJob>},
    {"CommitCheckpoint",
     &CallAsJson<v1::CommitCheckpointRequest, v1::Checkpoint, &Client::CommitCheckpoint>},
    {"CreatePlan", &CallAsJson<v1::CreatePlanRequest, v1::CreatePlanResponse, &Client::CreatePlan>},
    {"DetachJob", &CallAsJson<v1::DetachJobRequest, v1::Job, &Client::DetachJob>},
    {"GetJob", &CallAsJson<v1::GetJobRequest, v1::Job, &Client::GetJob>},
    {"GetPlan", &CallAsJson<v1::GetPlanRequest, v1::FramePlan, &Client::GetPlan>},
    {"ListCheckpoints", &CallAsJson<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse,
                                    &Client::ListCheckpoints>},
    {"ListJobs", &CallAsJson<v1::ListJobsRequest, v1::ListJobsResponse, &Client::ListJobs>},
    {"ListNodes", &CallAsJson<v1::ListNodesRequest, v1::ListNodesResponse, &Client::ListNodes>},
    {"PreemptJob", &CallAsJson<v1::PreemptJobRequest, v1::Job, &Client::PreemptJob>},
    {"PrepareCheckpoint",
     &CallAsJson<v1::PrepareCheckpointRequest, v1::Checkpoint, &Client::PrepareCheckpoint>},
    {"ReadLog", &CallAsJson<v1::ReadLogRequest, v1::ReadLogResponse, &Client::ReadLog>},
    {"RetireCheckpoint",
     &CallAsJson<v1::RetireCheckpointRequest, v1::Checkpoint, &Client::RetireCheckpoint>},
    {"SubmitJob", &CallAsJson<v1::SubmitJobRequest, v1::SubmitJobResponse, &Client::SubmitJob>},
    {"WatchCheckpoint",
     &CallAsJson<v1::WatchCheckpointRequest, v1::Checkpoint, &Client::WatchCheckpoint>},
    {"WatchJob", &CallAsJson<v1::WatchJobRequest, v1::Job, &Client::WatchJob>},
};

absl::StatusOr<JsonCall> FindMethod(const std::string& name) {
  for (const MethodEntry& entry : kMethods) {
    if (name == entry.name) return entry.call;
  }
  const std::string known = absl::StrJoin(
      kMethods, ", ", [](std::string* out, const MethodEntry& entry) { out->append(entry.name); });
  return absl::UnimplementedError(
      absl::StrCat("no method \"", name.substr(0, 64), "\"; there are ", known));
}

absl::StatusOr<std::unique_ptr<Client>> OpenClient(const char* address, const char* options_json) {
  ClientOptions options;
  options.address = address;
  JsonOptions reader("options_json");
  double timeout_s = 0;
  reader.Number("timeout_s", &timeout_s);
  reader.String("ca_file", &options.ca_file);
  HF_RETURN_IF_ERROR(reader.Parse(options_json == nullptr ? "" : options_json));
  if (timeout_s > 0) options.timeout = absl::Seconds(timeout_s);
  return Client::Create(std::move(options));
}

}  // namespace
}  // namespace hyperframes

using hyperframes::Guarded;
using hyperframes::RequireArgument;

extern "C" {

hf_code hf_client_open(const char* address, const char* options_json, hf_client** client) {
  return Guarded("hf_client_open", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(address, "address"));
    HF_RETURN_IF_ERROR(RequireArgument(client, "client"));
    HF_ASSIGN_OR_RETURN(auto opened, hyperframes::OpenClient(address, options_json));
    *client = new hf_client{std::move(opened)};
    return absl::OkStatus();
  });
}

hf_code hf_call(hf_client* client, const char* method, const char* request_json, double timeout_s,
                char** response_json) {
  return Guarded("hf_call", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(client, "client"));
    HF_RETURN_IF_ERROR(RequireArgument(method, "method"));
    HF_RETURN_IF_ERROR(RequireArgument(request_json, "request_json"));
    HF_RETURN_IF_ERROR(RequireArgument(response_json, "response_json"));
    HF_ASSIGN_OR_RETURN(const hyperframes::JsonCall call, hyperframes::FindMethod(method));
    const absl::Duration timeout =
        timeout_s > 0 ? absl::Seconds(timeout_s) : hyperframes::kDefaultTimeout;
    HF_ASSIGN_OR_RETURN(const std::string response,
                        call(client->client.get(), request_json, timeout));
    return hyperframes::CopyOut(response, response_json);
  });
}

void hf_client_close(hf_client* client) {
  // The threads that a channel would wait for are the parent's.
  if (hyperframes::ForkedAfterUse()) return;
  delete client;
}

}  // extern "C"
