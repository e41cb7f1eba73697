// Room: client/cpp. What a program says to a coordinator: submit, watch, plan, checkpoint. It knows
// protos and gRPC; it must not know planners, engines or devices. Everything that talks to a
// coordinator (hfctl, the C ABI, and through it Python) goes through this class, so that deadlines,
// retries and the sentence for an unreachable coordinator exist once.
#ifndef HYPERFRAMES_CLIENT_CPP_CLIENT_H_
#define HYPERFRAMES_CLIENT_CPP_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/retry.h"
#include "coordinator/wire/job_state_name.h"
#include "hyperframes/v1/checkpoint.grpc.pb.h"
#include "hyperframes/v1/coordinator.grpc.pb.h"

namespace hyperframes {

struct ClientOptions {
  std::string address = "127.0.0.1:7461";
  std::string ca_file;                         // PEM; empty: no TLS.
  absl::Duration timeout = absl::Seconds(10);  // Of a call that does not bring its own.
  // What else to do when nobody answers: it ends the sentence.
  std::string remedy = "unset HYPERFRAMES_COORDINATOR to run without one";
  RetryPolicy retry;
  const Clock* clock = MonotonicClock();      // Outlives the client.
  std::function<void(absl::Duration)> sleep;  // Empty: absl::SleepFor.
  uint64_t seed = 0;                          // Of the jitter; 0: random.
};

// Reads as ClientOptions::timeout.
constexpr absl::Duration kDefaultTimeout = absl::ZeroDuration();

// Each method is one RPC of coordinator.proto or checkpoint.proto and returns what the server
// answered, with these codes added:
//   Unavailable       the coordinator cannot be reached; the message has its address and what to
//   do.
//                     All calls are idempotent; they were retried until their deadline by then.
//   DeadlineExceeded  no answer within `timeout`.
// The protocol version is filled in. Thread-safe.
class Client {
 public:
  // Does not connect yet. InvalidArgument: the address is not host:port, or timeout <= 0; NotFound,
  // FailedPrecondition: the CA file.
  static absl::StatusOr<std::unique_ptr<Client>> Create(ClientOptions options);
  ~Client();

  absl::StatusOr<v1::ListNodesResponse> ListNodes(const v1::ListNodesRequest& request,
                                                  absl::Duration timeout = kDefaultTimeout);

  // Retried with the same idempotency key, which is drawn at random when empty: a job is never
  // queued twice by one call.
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request,
                                                  absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::Job> GetJob(const v1::GetJobRequest& request,
                                 absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request,
                                                absl::Duration timeout = kDefaultTimeout);
  // The default timeout is wait_s plus ClientOptions::timeout.
  absl::StatusOr<v1::Job> WatchJob(const v1::WatchJobRequest& request,
                                   absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::Job> CancelJob(const v1::CancelJobRequest& request,
                                    absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::Job> PreemptJob(const v1::PreemptJobRequest& request,
                                     absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::AttachJobResponse> AttachJob(const v1::AttachJobRequest& request,
                                                  absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::Job> DetachJob(const v1::DetachJobRequest& request,
                                    absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::ReadLogResponse> ReadLog(const v1::ReadLogRequest& request,
                                              absl::Duration timeout = kDefaultTimeout);

  // Answered when every rank has called, so give it minutes. The same profile gets the same answer,
  // also from a coordinator that was restarted meanwhile, so it is retried like the others.
  absl::StatusOr<v1::CreatePlanResponse> CreatePlan(const v1::CreatePlanRequest& request,
                                                    absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::FramePlan> GetPlan(const v1::GetPlanRequest& request,
                                        absl::Duration timeout = kDefaultTimeout);

  // Those of ranks carry the protocol version in `caller`.
  absl::StatusOr<v1::Checkpoint> BeginCheckpoint(const v1::BeginCheckpointRequest& request,
                                                 absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::Checkpoint> PrepareCheckpoint(const v1::PrepareCheckpointRequest& request,
                                                   absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::Checkpoint> CommitCheckpoint(const v1::CommitCheckpointRequest& request,
                                                  absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::Checkpoint> AbortCheckpoint(const v1::AbortCheckpointRequest& request,
                                                 absl::Duration timeout = kDefaultTimeout);
  // The default timeout is wait_s plus ClientOptions::timeout.
  absl::StatusOr<v1::Checkpoint> WatchCheckpoint(const v1::WatchCheckpointRequest& request,
                                                 absl::Duration timeout = kDefaultTimeout);
  // NotFound: also what an earlier attempt of this call has retired.
  absl::StatusOr<v1::Checkpoint> RetireCheckpoint(const v1::RetireCheckpointRequest& request,
                                                  absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(
      const v1::ListCheckpointsRequest& request, absl::Duration timeout = kDefaultTimeout);

  // Returns the job once it has ended (see IsFinalJobState). DeadlineExceeded says in which state
  // it still is. A coordinator that is away meanwhile is waited for until `timeout`. `on_change`,
  // when given, sees the job as it is now and after every change, on this thread.
  absl::StatusOr<v1::Job> WaitJob(const std::string& id, absl::Duration timeout,
                                  const std::function<void(const v1::Job&)>& on_change = nullptr);

  // Hands a rank's log to `sink` from `offset` on, until it is complete and the job has ended, or
  // `sink` returns false. With `follow` false: what is there now. Polls every `kLogPollInterval`,
  // and calls `sink` with "" when a poll brought nothing. `attempt` 0: the newest, and those that
  // follow it, each from its beginning. DeadlineExceeded after `timeout`.
  absl::Status FollowLog(const std::string& job_id, int rank, int64_t offset, bool follow,
                         absl::Duration timeout,
                         const std::function<bool(const std::string& data)>& sink, int attempt = 0);

  const std::string& address() const { return options_.address; }

 private:
  Client(ClientOptions options, std::shared_ptr<grpc::Channel> channel);

  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(Stub* stub,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request, absl::Duration timeout);
  RetryEnvironment Environment() const;
  absl::Status Unreachable(const std::string& reason) const;

  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Cluster::Stub> cluster_;
  const std::unique_ptr<v1::Jobs::Stub> jobs_;
  const std::unique_ptr<v1::Plans::Stub> plans_;
  const std::unique_ptr<v1::Checkpoints::Stub> checkpoints_;
};

constexpr absl::Duration kLogPollInterval = absl::Milliseconds(200);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CPP_CLIENT_H_
