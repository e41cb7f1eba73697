// Keeps the coordinator informed: registers, beats, reports, and starts over whenever it is told
// that it is not known. Nothing on the node depends on it: while the coordinator is away, workers
// and leases go on.
#ifndef HYPERFRAMES_AGENT_SERVICE_COORDINATOR_LINK_H_
#define HYPERFRAMES_AGENT_SERVICE_COORDINATOR_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/service/epoch_fence.h"
#include "agent/service/node.h"
#include "common/backoff.h"
#include "common/mutex.h"
#include "hyperframes/v1/membership.grpc.pb.h"

namespace hyperframes {

struct CoordinatorLinkOptions {
  std::string coordinator;    // host:port
  std::string agent_address;  // Ours, as others reach it.
  std::string http_address;
  std::vector<v1::LinkProfile> links;
  v1::NetworkProfile network;
  absl::Duration rpc_timeout = absl::Seconds(5);
  absl::Duration report_interval = absl::Seconds(1);
  BackoffPolicy backoff = {/*first_backoff=*/absl::Milliseconds(50),
                           /*longest_backoff=*/absl::Seconds(1)};
};

// Thread-safe. Two threads: one beats, so that no report, however large, delays a heartbeat; the
// other registers and reports.
class CoordinatorLink {
 public:
  // `node` and `fence` outlive it. Starts at once and never gives up.
  CoordinatorLink(CoordinatorLinkOptions options, Node* node, EpochFence* fence);
  // Cancels calls under way.
  ~CoordinatorLink();

  // These links instead of those of the options: registers again, unless they are the same.
  void SetLinks(std::vector<v1::LinkProfile> links) HF_EXCLUDES(mutex_);

  // Something changed that the coordinator should hear of now rather than within a second.
  void NotifyChanged() HF_EXCLUDES(mutex_);

  struct State {
    bool registered = false;
    absl::Duration heartbeat_gap;  // Since the last answered heartbeat; since the start before it.
    std::string last_error;        // Of the last failed call; empty while all is well.
  };
  State state() const HF_EXCLUDES(mutex_);
  uint64_t incarnation() const { return incarnation_; }

 private:
  class Call;
  void BeatLoop();
  void ReportLoop();
  absl::Status Register();
  absl::Status CallRegister(const v1::RegisterRequest& request, v1::RegisterResponse* response);
  absl::Status Report();
  absl::Status Beat();
  // Leases and workers that nobody wants any more.
  template <typename Response>
  void Obey(const Response& response);
  template <typename Request>
  void FillInventory(Request* request, std::vector<LeaseRecord>* leases);
  template <typename Request>
  void AcknowledgeEnds(const Request& request, const std::vector<LeaseRecord>& leases);
  // What a report says, without what changes all the time.
  std::string Fingerprint() const;
  void Lost(const absl::Status& status) HF_EXCLUDES(mutex_);
  // False: the link is ending.
  bool Pause(absl::Duration duration) HF_EXCLUDES(mutex_);

  const CoordinatorLinkOptions options_;
  Node* const node_;
  EpochFence* const fence_;
  const uint64_t incarnation_;
  const std::unique_ptr<v1::Membership::Stub> beat_stub_;
  const std::unique_ptr<v1::Membership::Stub> report_stub_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ HF_GUARDED_BY(mutex_) = false;
  bool registered_ HF_GUARDED_BY(mutex_) = false;
  bool notified_ HF_GUARDED_BY(mutex_) = false;
  std::vector<v1::LinkProfile> links_ HF_GUARDED_BY(mutex_);
  bool links_changed_ HF_GUARDED_BY(mutex_) = false;  // Since the last registration began.
  absl::Duration heartbeat_interval_ HF_GUARDED_BY(mutex_) = absl::Seconds(1);
  absl::Time last_beat_ HF_GUARDED_BY(mutex_);
  std::string last_error_ HF_GUARDED_BY(mutex_);
  std::vector<grpc::ClientContext*> calls_ HF_GUARDED_BY(mutex_);  // To be cancelled.
  uint64_t sequence_ = 0;                                          // Of the beat thread.
  std::string last_reported_;                                      // Of the report thread.
  std::thread beat_thread_;
  std::thread report_thread_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_COORDINATOR_LINK_H_
