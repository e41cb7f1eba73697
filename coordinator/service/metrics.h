// Room: coordinator/service. gRPC and HTTP around the rooms below: it converts, counts, and decides
// nothing. This file: the coordinator's metrics, every label from a bounded set.
#ifndef HYPERFRAMES_COORDINATOR_SERVICE_METRICS_H_
#define HYPERFRAMES_COORDINATOR_SERVICE_METRICS_H_

#include <grpcpp/support/status.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "hyperframes/v1/checkpoint.pb.h"
#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

// Thread-safe.
class CoordinatorMetrics {
 public:
  CoordinatorMetrics();

  void HeartbeatGap(absl::Duration gap) { heartbeat_gap_.Observe(absl::ToDoubleSeconds(gap)); }
  void PlanMade(absl::Duration took, int64_t epoch);
  void StoreCommit(absl::Duration took) { store_commit_.Observe(absl::ToDoubleSeconds(took)); }
  // `save` is from the checkpoint's begin to its commit.
  void CheckpointCommitted(absl::Duration save);
  // A reason outside kAbortReasons counts as "other".
  void CheckpointAborted(const std::string& reason);
  // A record of a lease has ended. A reason outside the known set counts as "other".
  void LeaseRecordEnded(const std::string& reason);
  // Counts and passes the status on. `method` is one of the services' methods, without its service.
  grpc::Status Rpc(const char* method, grpc::Status status);

  struct Snapshot {
    std::map<v1::NodeState, int64_t> nodes;
    std::map<v1::JobState, int64_t> jobs;
    std::map<v1::CheckpointState, int64_t> checkpoints;
    int64_t lent_bytes = 0;
    int64_t epoch = 0;
    int64_t stalls = 0;
    int64_t waiting_calls = 0;
  };
  // Sets what is counted elsewhere and returns everything in Prometheus' text format.
  std::string Render(const Snapshot& snapshot) HF_EXCLUDES(mutex_);

 private:
  prometheus::Registry registry_;
  prometheus::Histogram& heartbeat_gap_;
  prometheus::Histogram& plan_duration_;
  prometheus::Histogram& store_commit_;
  prometheus::Histogram& checkpoint_save_;
  prometheus::Counter& checkpoint_commits_;
  prometheus::Gauge& plan_epoch_;
  prometheus::Gauge& lent_bytes_;
  prometheus::Gauge& epoch_;
  prometheus::Counter& stalls_;
  prometheus::Gauge& waiting_calls_;
  prometheus::Family<prometheus::Gauge>& nodes_;
  prometheus::Family<prometheus::Gauge>& jobs_;
  prometheus::Family<prometheus::Gauge>& checkpoints_;
  prometheus::Family<prometheus::Counter>& checkpoint_aborts_;
  prometheus::Family<prometheus::Counter>& lease_records_ended_;
  prometheus::Family<prometheus::Counter>& rpcs_;
  Mutex mutex_;  // Two scrapes at once must not both add the same stalls.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_SERVICE_METRICS_H_
