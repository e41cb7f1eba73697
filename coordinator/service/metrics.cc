#include "coordinator/service/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/ascii.h"
#include "coordinator/checkpoints/checkpoint_loss.h"
#include "coordinator/checkpoints/checkpoint_state.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/membership/node_state.h"

namespace hyperframes {
namespace {

const char* CodeName(grpc::StatusCode code) {
  static const char* const kNames[] = {"ok",
                                       "cancelled",
                                       "unknown",
                                       "invalid_argument",
                                       "deadline_exceeded",
                                       "not_found",
                                       "already_exists",
                                       "permission_denied",
                                       "resource_exhausted",
                                       "failed_precondition",
                                       "aborted",
                                       "out_of_range",
                                       "unimplemented",
                                       "internal",
                                       "unavailable",
                                       "data_loss",
                                       "unauthenticated"};
  const int index = static_cast<int>(code);
  return index >= 0 && index <= 16 ? kNames[index] : "unknown";
}

constexpr const char* kLeaseEnds[] = {"job_end",  "worker_died", "aborted",     "replaced",
                                      "returned", "revoked",     "agent_reset", "unwanted"};

prometheus::Histogram& MakeHistogram(prometheus::Registry* registry, const std::string& name,
                                     const std::string& help,
                                     const prometheus::Histogram::BucketBoundaries& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry).Add({}, buckets);
}

prometheus::Gauge& MakeGauge(prometheus::Registry* registry, const std::string& name,
                             const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry).Add({});
}

}  // namespace

CoordinatorMetrics::CoordinatorMetrics()
    : heartbeat_gap_(MakeHistogram(&registry_, "hyperframes_heartbeat_gap_seconds",
                                   "Time between two heartbeats of a node.",
                                   {0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 30})),
      plan_duration_(MakeHistogram(&registry_, "hyperframes_plan_duration_seconds",
                                   "From the last rank's profile to the committed plan.",
                                   {0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30})),
      store_commit_(MakeHistogram(&registry_, "hyperframes_store_commit_duration_seconds",
                                  "Commits to the store, lock wait included.",
                                  {0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5})),
      checkpoint_save_(MakeHistogram(&registry_, "hyperframes_checkpoint_save_seconds",
                                     "From a checkpoint's begin to its commit.",
                                     {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600})),
      checkpoint_commits_(prometheus::BuildCounter()
                              .Name("hyperframes_checkpoint_commits_total")
                              .Help("Checkpoints that were committed.")
                              .Register(registry_)
                              .Add({})),
      plan_epoch_(MakeGauge(&registry_, "hyperframes_plan_epoch",
                            "Epoch of the plan that was committed last.")),
      lent_bytes_(MakeGauge(&registry_, "hyperframes_coordinator_lent_bytes",
                            "Bytes in leases that the coordinator keeps records of.")),
      epoch_(MakeGauge(&registry_, "hyperframes_leadership_epoch",
                       "Epoch of this coordinator's leadership.")),
      stalls_(prometheus::BuildCounter()
                  .Name("hyperframes_coordinator_stalls_total")
                  .Help("Times that the coordinator noticed a stall of its own.")
                  .Register(registry_)
                  .Add({})),
      waiting_calls_(MakeGauge(&registry_, "hyperframes_waiting_calls",
                               "CreatePlan, WatchJob and WatchCheckpoint calls that wait.")),
      nodes_(prometheus::BuildGauge()
                 .Name("hyperframes_nodes")
                 .Help("Nodes by state.")
                 .Register(registry_)),
      jobs_(prometheus::BuildGauge()
                .Name("hyperframes_jobs")
                .Help("Jobs by state, finished ones while they are remembered.")
                .Register(registry_)),
      checkpoints_(prometheus::BuildGauge()
                       .Name("hyperframes_checkpoints")
                       .Help("Checkpoints by state, while they are remembered.")
                       .Register(registry_)),
      checkpoint_aborts_(prometheus::BuildCounter()
                             .Name("hyperframes_checkpoint_aborts_total")
                             .Help("Checkpoints that were aborted, by reason.")
                             .Register(registry_)),
      // Not leases_reclaimed_total: those are the agents', who hold the memory itself.
      lease_records_ended_(prometheus::BuildCounter()
                               .Name("hyperframes_lease_records_ended_total")
                               .Help("Records of leases that the coordinator closed, by reason.")
                               .Register(registry_)),
      rpcs_(prometheus::BuildCounter()
                .Name("hyperframes_rpcs_total")
                .Help("Answered calls by method and code.")
                .Register(registry_)) {
  // increase() does not see the first event of a series that begins with it.
  for (const char* reason : kAbortReasons) checkpoint_aborts_.Add({{"reason", reason}});
  for (const char* reason : kLeaseEnds) lease_records_ended_.Add({{"reason", reason}});
}

void CoordinatorMetrics::CheckpointCommitted(absl::Duration save) {
  checkpoint_commits_.Increment();
  checkpoint_save_.Observe(absl::ToDoubleSeconds(save));
}

void CoordinatorMetrics::CheckpointAborted(const std::string& reason) {
  const bool known = std::find(std::begin(kAbortReasons), std::end(kAbortReasons), reason) !=
                     std::end(kAbortReasons);
  checkpoint_aborts_.Add({{"reason", known ? reason : "other"}}).Increment();
}

void CoordinatorMetrics::PlanMade(absl::Duration took, int64_t epoch) {
  plan_duration_.Observe(absl::ToDoubleSeconds(took));
  plan_epoch_.Set(static_cast<double>(epoch));
}

void CoordinatorMetrics::LeaseRecordEnded(const std::string& reason) {
  const bool known =
      std::find(std::begin(kLeaseEnds), std::end(kLeaseEnds), reason) != std::end(kLeaseEnds);
  lease_records_ended_.Add({{"reason", known ? reason : "other"}}).Increment();
}

grpc::Status CoordinatorMetrics::Rpc(const char* method, grpc::Status status) {
  rpcs_.Add({{"method", method}, {"code", CodeName(status.error_code())}}).Increment();
  return status;
}

std::string CoordinatorMetrics::Render(const Snapshot& snapshot) {
  const auto value = [](const auto& counts, auto state) {
    const auto found = counts.find(state);
    return found == counts.end() ? 0.0 : static_cast<double>(found->second);
  };
  for (int i = v1::NODE_STATE_ALIVE; i < v1::NodeState_ARRAYSIZE; ++i) {
    const auto state = static_cast<v1::NodeState>(i);
    nodes_.Add({{"state", absl::AsciiStrToLower(NodeStateName(state))}})
        .Set(value(snapshot.nodes, state));
  }
  for (int i = v1::JOB_STATE_QUEUED; i < v1::JobState_ARRAYSIZE; ++i) {
    const auto state = static_cast<v1::JobState>(i);
    jobs_.Add({{"state", absl::AsciiStrToLower(JobStateName(state))}})
        .Set(value(snapshot.jobs, state));
  }
  for (int i = v1::CHECKPOINT_STATE_OPEN; i < v1::CheckpointState_ARRAYSIZE; ++i) {
    const auto state = static_cast<v1::CheckpointState>(i);
    checkpoints_.Add({{"state", absl::AsciiStrToLower(CheckpointStateName(state))}})
        .Set(value(snapshot.checkpoints, state));
  }
  lent_bytes_.Set(static_cast<double>(snapshot.lent_bytes));
  epoch_.Set(static_cast<double>(snapshot.epoch));
  {
    MutexLock lock(&mutex_);
    stalls_.Increment(static_cast<double>(snapshot.stalls) - stalls_.Value());
  }
  waiting_calls_.Set(static_cast<double>(snapshot.waiting_calls));
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace hyperframes
