#include "client/cpp/client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/channel.h"
#include "common/grpc_status.h"
#include "common/protocol_version.h"
#include "common/random_id.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kLongestWatch = absl::Seconds(30);  // The server's own limit.
constexpr size_t kLongestReason = 256;
// gRPC's own words on either side; a handler that timed out has better ones.
constexpr char kDeadlineOfGrpc[] = "Deadline Exceeded";
// A worker that was killed together with its agent never says that its log is complete.
constexpr int kQuietPollsAfterEnd = 5;

template <typename Request>
Request WithVersion(Request request) {
  request.mutable_version()->set_major(kProtocolMajor);
  request.mutable_version()->set_minor(kProtocolMinor);
  return request;
}

template <typename Request>
Request WithCallersVersion(Request request) {
  *request.mutable_caller() = WithVersion(request.caller());
  return request;
}

// Whether the server sent this status itself, rather than the transport failing. gRPC tells the two
// apart only in its debugging text; a wrong guess costs the wrong half of a sentence, nothing more.
bool ServerSaidSo(const grpc::ClientContext& context) {
  return absl::StrContains(context.debug_error_string(), "Error received from peer");
}

// gRPC wraps "Connection refused" into a sentence about all addresses; its end is what happened.
std::string Cause(const std::string& reason) {
  const size_t colon = absl::StrContains(reason, "last error") ? reason.rfind(": ") : reason.npos;
  return (colon == reason.npos ? reason : reason.substr(colon + 2)).substr(0, kLongestReason);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "timeout ", absl::FormatDuration(options.timeout), " of a client: must be > 0"));
  }
  HF_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                      CreateClientChannel(options.address, options.ca_file));
  if (!options.sleep) options.sleep = [](absl::Duration wait) { absl::SleepFor(wait); };
  return std::unique_ptr<Client>(new Client(std::move(options), std::move(channel)));
}

Client::Client(ClientOptions options, std::shared_ptr<grpc::Channel> channel)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      cluster_(v1::Cluster::NewStub(channel_)),
      jobs_(v1::Jobs::NewStub(channel_)),
      plans_(v1::Plans::NewStub(channel_)),
      checkpoints_(v1::Checkpoints::NewStub(channel_)) {}

Client::~Client() = default;

RetryEnvironment Client::Environment() const {
  RetryEnvironment environment;
  environment.clock = options_.clock;
  environment.sleep = options_.sleep;
  environment.seed = options_.seed != 0 ? options_.seed : RandomIncarnation();
  return environment;
}

absl::Status Client::Unreachable(const std::string& reason) const {
  return absl::UnavailableError(absl::StrCat(
      "no coordinator answers at ", options_.address, " (", Cause(reason),
      "); is hfcoordinator running there? Start it with `hfcoordinator --listen-address ",
      options_.address, "`, or ", options_.remedy));
}

// Every call of the coordinator is idempotent, so each is retried.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Client::Call(Stub* stub,
                                      grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                                      const Request& request, absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) timeout = options_.timeout;
  Response response;
  const Attempt attempt = [&](absl::Duration left) -> absl::Status {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + left));
    response.Clear();
    const grpc::Status status = (stub->*method)(&context, request, &response);
    if (status.ok()) return absl::OkStatus();
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
        (status.error_message() == kDeadlineOfGrpc || !ServerSaidSo(context))) {
      return absl::DeadlineExceededError(absl::StrCat("the coordinator at ", options_.address,
                                                      " did not answer within ",
                                                      absl::FormatDuration(timeout)));
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !ServerSaidSo(context)) {
      return Unreachable(status.error_message());
    }
    return FromGrpc(status);
  };
  HF_RETURN_IF_ERROR(
      CallWithRetries(options_.retry, Environment(), /*idempotent=*/true, timeout, attempt));
  return response;
}

absl::StatusOr<v1::ListNodesResponse> Client::ListNodes(const v1::ListNodesRequest& request,
                                                        absl::Duration timeout) {
  return Call(cluster_.get(), &v1::Cluster::Stub::ListNodes, WithVersion(request), timeout);
}

absl::StatusOr<v1::SubmitJobResponse> Client::SubmitJob(const v1::SubmitJobRequest& request,
                                                        absl::Duration timeout) {
  v1::SubmitJobRequest complete = WithVersion(request);
  if (complete.idempotency_key().empty()) complete.set_idempotency_key(RandomHex(/*bytes=*/16));
  return Call(jobs_.get(), &v1::Jobs::Stub::SubmitJob, complete, timeout);
}

absl::StatusOr<v1::Job> Client::GetJob(const v1::GetJobRequest& request, absl::Duration timeout) {
  return Call(jobs_.get(), &v1::Jobs::Stub::GetJob, request, timeout);
}

absl::StatusOr<v1::ListJobsResponse> Client::ListJobs(const v1::ListJobsRequest& request,
                                                      absl::Duration timeout) {
  return Call(jobs_.get(), &v1::Jobs::Stub::ListJobs, request, timeout);
}

absl::StatusOr<v1::Job> Client::WatchJob(const v1::WatchJobRequest& request,
                                         absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) {
    timeout = options_.timeout + absl::Seconds(std::max(0.0, request.wait_s()));
  }
  return Call(jobs_.get(), &v1::Jobs::Stub::WatchJob, request, timeout);
}

absl::StatusOr<v1::Job> Client::CancelJob(const v1::CancelJobRequest& request,
                                          absl::Duration timeout) {
  return Call(jobs_.get(), &v1::Jobs::Stub::CancelJob, request, timeout);
}

absl::StatusOr<v1::Job> Client::PreemptJob(const v1::PreemptJobRequest& request,
                                           absl::Duration timeout) {
  return Call(jobs_.get(), &v1::Jobs::Stub::PreemptJob, request, timeout);
}

absl::StatusOr<v1::AttachJobResponse> Client::AttachJob(const v1::AttachJobRequest& request,
                                                        absl::Duration timeout) {
  return Call(jobs_.get(), &v1::Jobs::Stub::AttachJob, WithVersion(request), timeout);
}

absl::StatusOr<v1::Job> Client::DetachJob(const v1::DetachJobRequest& request,
                                          absl::Duration timeout) {
  return Call(jobs_.get(), &v1::Jobs::Stub::DetachJob, request, timeout);
}

absl::StatusOr<v1::ReadLogResponse> Client::ReadLog(const v1::ReadLogRequest& request,
                                                    absl::Duration timeout) {
  return Call(jobs_.get(), &v1::Jobs::Stub::ReadLog, request, timeout);
}

absl::StatusOr<v1::CreatePlanResponse> Client::CreatePlan(const v1::CreatePlanRequest& request,
                                                          absl::Duration timeout) {
  return Call(plans_.get(), &v1::Plans::Stub::CreatePlan, WithVersion(request), timeout);
}

absl::StatusOr<v1::FramePlan> Client::GetPlan(const v1::GetPlanRequest& request,
                                              absl::Duration timeout) {
  return Call(plans_.get(), &v1::Plans::Stub::GetPlan, request, timeout);
}

absl::StatusOr<v1::Checkpoint> Client::BeginCheckpoint(const v1::BeginCheckpointRequest& request,
                                                       absl::Duration timeout) {
  return Call(checkpoints_.get(), &v1::Checkpoints::Stub::BeginCheckpoint,
              WithCallersVersion(request), timeout);
}

absl::StatusOr<v1::Checkpoint> Client::PrepareCheckpoint(
    const v1::PrepareCheckpointRequest& request, absl::Duration timeout) {
  return Call(checkpoints_.get(), &v1::Checkpoints::Stub::PrepareCheckpoint,
              WithCallersVersion(request), timeout);
}

absl::StatusOr<v1::Checkpoint> Client::CommitCheckpoint(const v1::CommitCheckpointRequest& request,
                                                        absl::Duration timeout) {
  return Call(checkpoints_.get(), &v1::Checkpoints::Stub::CommitCheckpoint,
              WithCallersVersion(request), timeout);
}

absl::StatusOr<v1::Checkpoint> Client::AbortCheckpoint(const v1::AbortCheckpointRequest& request,
                                                       absl::Duration timeout) {
  return Call(checkpoints_.get(), &v1::Checkpoints::Stub::AbortCheckpoint,
              WithCallersVersion(request), timeout);
}

absl::StatusOr<v1::Checkpoint> Client::WatchCheckpoint(const v1::WatchCheckpointRequest& request,
                                                       absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) {
    timeout = options_.timeout + absl::Seconds(std::max(0.0, request.wait_s()));
  }
  return Call(checkpoints_.get(), &v1::Checkpoints::Stub::WatchCheckpoint, request, timeout);
}

absl::StatusOr<v1::Checkpoint> Client::RetireCheckpoint(const v1::RetireCheckpointRequest& request,
                                                        absl::Duration timeout) {
  return Call(checkpoints_.get(), &v1::Checkpoints::Stub::RetireCheckpoint,
              WithCallersVersion(request), timeout);
}

absl::StatusOr<v1::ListCheckpointsResponse> Client::ListCheckpoints(
    const v1::ListCheckpointsRequest& request, absl::Duration timeout) {
  return Call(checkpoints_.get(), &v1::Checkpoints::Stub::ListCheckpoints, request, timeout);
}

absl::StatusOr<v1::Job> Client::WaitJob(const std::string& id, absl::Duration timeout,
                                        const std::function<void(const v1::Job&)>& on_change) {
  const absl::Time deadline = options_.clock->Now() + timeout;
  v1::GetJobRequest get;
  get.set_id(id);
  absl::StatusOr<v1::Job> job = GetJob(get, std::min(timeout, options_.timeout));
  while (job.ok() && !IsFinalJobState(job->state())) {
    if (on_change != nullptr) on_change(*job);
    const absl::Duration left = deadline - options_.clock->Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("job ", id, " is still ", JobStateName(job->state()), " after ",
                       absl::FormatDuration(timeout), ": ", job->message()));
    }
    v1::WatchJobRequest watch;
    watch.set_id(id);
    watch.set_after_version(job->version());
    watch.set_wait_s(absl::ToDoubleSeconds(std::min(left, kLongestWatch)));
    absl::StatusOr<v1::Job> next = WatchJob(watch);
    if (absl::IsUnavailable(next.status())) {
      options_.sleep(options_.retry.first_backoff);  // Running jobs outlive their coordinator.
      continue;
    }
    job = std::move(next);
  }
  return job;
}

absl::Status Client::FollowLog(const std::string& job_id, int rank, int64_t offset, bool follow,
                               absl::Duration timeout,
                               const std::function<bool(const std::string& data)>& sink,
                               int attempt) {
  const absl::Time deadline = options_.clock->Now() + timeout;
  v1::GetJobRequest get;
  get.set_id(job_id);
  v1::ReadLogRequest read;
  read.set_job_id(job_id);
  read.set_rank(rank);
  read.set_offset(offset);
  read.set_attempt(attempt);
  int quiet_polls_after_end = 0;
  bool answered = false;
  while (true) {
    // The job is asked for before the log: what it wrote before it ended is read after it is known
    // to have ended.
    absl::StatusOr<v1::Job> job = GetJob(get);
    if (job.ok() && read.attempt() == 0) read.set_attempt(job->attempt());
    absl::StatusOr<v1::ReadLogResponse> chunk =
        job.ok() ? ReadLog(read) : absl::StatusOr<v1::ReadLogResponse>(job.status());
    const bool over = job.ok() && read.attempt() != job->attempt();
    const bool ended = job.ok() && (over || IsFinalJobState(job->state()));
    // While following, a job that waits for GPUs has no log yet, and a coordinator or an agent that
    // restarts loses nothing: their answers only come later.
    const bool passing = (absl::IsNotFound(chunk.status()) && job.ok() && !ended) ||
                         (absl::IsUnavailable(chunk.status()) && answered);
    answered = answered || job.ok();
    if (!chunk.ok() && !(follow && passing)) return chunk.status();
    if (chunk.ok() && !chunk->data().empty()) {
      if (!sink(chunk->data())) return absl::OkStatus();
      read.set_offset(std::max(read.offset(), chunk->next_offset()));
      continue;  // There may be more already.
    }
    if (!follow) return absl::OkStatus();
    if (ended &&
        ((chunk.ok() && chunk->complete()) || ++quiet_polls_after_end >= kQuietPollsAfterEnd)) {
      if (!over || attempt != 0) return absl::OkStatus();
      read.set_attempt(job->attempt());  // It was restarted: the next attempt has a log of its own.
      read.set_offset(0);
      quiet_polls_after_end = 0;
      continue;
    }
    if (options_.clock->Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the log of job ", job_id, " rank ", rank,
                                                      " did not end within ",
                                                      absl::FormatDuration(timeout)));
    }
    // Whoever reads may have gone away, and the next line may be an hour off.
    if (!sink("")) return absl::OkStatus();
    options_.sleep(kLogPollInterval);
  }
}

}  // namespace hyperframes
