#include "agent/telemetry/exporter.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <initializer_list>
#include <map>
#include <string>
#include <utility>

namespace hyperframes {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;
using prometheus::MetricType;

// Collects samples into families of one name each.
class Families {
 public:
  void Add(const std::string& name, const std::string& help, MetricType type, const Labels& labels,
           double value) {
    const auto [at, is_new] = index_.emplace(name, families_.size());
    if (is_new) {
      families_.emplace_back();
      families_.back().name = "hyperframes_" + name;
      families_.back().help = help;
      families_.back().type = type;
    }
    prometheus::ClientMetric metric;
    for (const auto& [label, text] : labels) metric.label.push_back({label, text});
    if (type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_[at->second].metric.push_back(std::move(metric));
  }
  // Samples are doubles in Prometheus: exact for bytes and counts up to 2^53.
  template <typename Number>
  void Gauge(const std::string& name, const std::string& help, const Labels& labels, Number value) {
    Add(name, help, MetricType::Gauge, labels, static_cast<double>(value));
  }
  template <typename Number>
  void Counter(const std::string& name, const std::string& help, const Labels& labels,
               Number value) {
    Add(name, help, MetricType::Counter, labels, static_cast<double>(value));
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::map<std::string, size_t> index_;
  std::vector<prometheus::MetricFamily> families_;
};

void AddDevice(const NodeSample& sample, const DeviceSample& device, Families* families) {
  const Labels uuid = {{"uuid", device.uuid}};
  families->Gauge("lent_capacity_bytes", "Bytes of the device that may be lent.", uuid,
                  device.total - device.reserved);
  families->Gauge("lent_used_bytes", "Bytes lent now.", uuid, device.lent);
  families->Gauge("lent_reserved_bytes", "Bytes that are never lent.", uuid, device.reserved);
  families->Gauge("lent_largest_free_bytes", "The largest lease that would be granted.", uuid,
                  device.largest_free);
  if (device.is_host) return;
  const auto counters = sample.counters_by_gpu.find(device.uuid);
  families->Gauge("water_level_ratio",
                  "Peak bytes over a step, own and lent, divided by usable bytes.", uuid,
                  WaterLevel(device, counters == sample.counters_by_gpu.end() ? CountersReading()
                                                                              : counters->second));
  const auto high = sample.water_level_high.find(device.uuid);
  families->Gauge("water_level_high_ratio", "The highest water level since the agent started.",
                  uuid, high == sample.water_level_high.end() ? 0 : high->second);
}

void AddCopies(const std::string& uuid, const CountersReading& counters, Families* families) {
  for (const Direction direction : {Direction::kOut, Direction::kIn}) {
    for (const Tier tier : {Tier::kPeer, Tier::kHost}) {
      const Labels labels = {
          {"uuid", uuid}, {"direction", DirectionName(direction)}, {"tier", TierName(tier)}};
      const int d = static_cast<int>(direction), t = static_cast<int>(tier);
      families->Counter("copied_bytes_total", "Bytes of frames copied.", labels,
                        counters.bytes_copied[d][t]);
      families->Counter("copies_total", "Copies of frames.", labels, counters.copies[d][t]);
      families->Counter("copy_seconds_total", "Time for which the lane was copying.", labels,
                        counters.copy_busy_s[d][t]);
    }
  }
}

void AddCounters(const std::string& gpu, const CountersReading& counters, Families* families) {
  const Labels uuid = {{"uuid", gpu}};
  AddCopies(gpu, counters, families);
  for (const Tier tier : {Tier::kKeep, Tier::kPeer, Tier::kHost}) {
    families->Gauge("frame_bytes", "Bytes of live frames by the tier they wait in.",
                    {{"uuid", gpu}, {"tier", TierName(tier)}},
                    counters.frame_bytes[static_cast<int>(tier)]);
  }
  families->Gauge("activation_bytes", "Bytes of activations held on the GPU now.", uuid,
                  counters.activation_bytes);
  families->Gauge("activation_peak_bytes", "The same, at the peak of the last step.", uuid,
                  counters.activation_peak_bytes);
  families->Gauge("predicted_peak_bytes",
                  "The peak that the plan predicts, weights and optimizer included.", uuid,
                  counters.predicted_peak_bytes);
  for (const auto& [direction, bytes] : {std::make_pair(Direction::kOut, counters.stash_bytes),
                                         std::make_pair(Direction::kIn, counters.reload_bytes)}) {
    families->Gauge("in_flight_bytes",
                    "Bytes on the GPU that wait for a copy out, or were copied in ahead of use.",
                    {{"uuid", gpu}, {"direction", DirectionName(direction)}}, bytes);
  }
  families->Counter("steps_total", "Training steps completed.", uuid, counters.steps);
  families->Counter("fetch_wait_seconds_total",
                    "Exposed wait: time for which the GPU stood still for a copy.", uuid,
                    counters.exposed_wait_s);
  families->Counter("recompute_seconds_total", "Time spent on recomputing dropped frames.", uuid,
                    counters.recompute_s);
  for (const auto& [tier, count] : {std::make_pair(Tier::kHost, counters.overflow_to_host),
                                    std::make_pair(Tier::kKeep, counters.overflow_to_keep)}) {
    families->Counter("frame_overflows_total",
                      "Frames that did not fit where the plan put them, by where they went.",
                      {{"uuid", gpu}, {"tier", TierName(tier)}}, count);
  }
}

// Stage 0 is always there, so that the first micro-batch of a GPU is an increase.
void AddStages(const std::string& gpu, std::map<int, StageReading> stages, Families* families) {
  stages[0];
  for (const auto& [stage, seen] : stages) {
    const Labels labels = {{"uuid", gpu}, {"stage", std::to_string(stage)}};
    families->Counter("micro_batches_total", "Micro-batches whose backward has ended.", labels,
                      seen.micro_batches);
    families->Counter("micro_batch_run_seconds_total",
                      "From a micro-batch's forward to the end of its backward.", labels,
                      seen.run_s);
    families->Counter("micro_batch_wait_seconds_total",
                      "Between the end of what ran before and a micro-batch's forward.", labels,
                      seen.wait_s);
  }
}

// With a zero for what has not happened yet: increase() does not see the first event of a series
// that begins with it.
std::map<std::string, int64_t> FromZero(std::map<std::string, int64_t> counts,
                                        std::initializer_list<const char*> reasons) {
  for (const char* reason : reasons) counts.emplace(reason, 0);
  return counts;
}

// `peer` and not `node`: a scrape adds its own label of that name.
void AddNetwork(const NodeSample& sample, Families* families) {
  if (sample.network_kind.empty()) return;
  families->Gauge("network_promised_bytes_per_second",
                  "What frames to and from other nodes were said to get, each way.",
                  {{"kind", sample.network_kind}}, sample.network_promised);
  for (const auto& [peer, rate] : sample.network_measured) {
    families->Gauge("network_measured_bytes_per_second",
                    "What frames to and from the other node really got, the slower way.",
                    {{"peer", peer}}, rate);
  }
}

}  // namespace

double WaterLevel(const DeviceSample& device, const CountersReading& counters) {
  const double usable = static_cast<double>(device.total);
  if (usable <= 0) return 0;
  return static_cast<double>(counters.activation_peak_bytes + device.lent) / usable;
}

std::string ExportMetrics(const NodeSample& sample) {
  Families families;
  for (const DeviceSample& device : sample.devices) AddDevice(sample, device, &families);
  for (const auto& [gpu, counters] : sample.counters_by_gpu) {
    AddCounters(gpu, counters, &families);
    AddStages(gpu, counters.stages, &families);
  }
  for (const auto& [reason, count] :
       FromZero(sample.leases_reclaimed, {"job_end", "worker_died", "revoked", "aborted"})) {
    families.Counter("leases_reclaimed_total", "Leases that ended, by reason.",
                     {{"reason", reason}}, count);
  }
  for (const auto& [state, count] : sample.workers_by_state) {
    families.Gauge("workers", "Workers of this node by state.", {{"state", state}}, count);
  }
  for (const auto& [reason, count] : FromZero(sample.worker_exits, {"ok", "exit_code", "signal"})) {
    families.Counter("worker_exits_total", "Workers that ended, by how.", {{"reason", reason}},
                     count);
  }
  families.Counter("worker_restarts_total", "Workers started for a second or later attempt.", {},
                   sample.worker_restarts);
  families.Counter("lease_mappings_opened_total", "Leases that a process mapped.", {},
                   sample.mappings_opened);
  families.Counter("lease_mappings_closed_total",
                   "Mapped leases that were returned, or whose process ended.", {},
                   sample.mappings_closed);
  families.Gauge("links_measured", "Paths between GPUs and host memory with a measured speed.", {},
                 sample.links_measured);
  for (const auto& [reason, count] : FromZero(sample.links_unmeasured, {"probe_failed"})) {
    families.Gauge("links_unmeasured", "Paths that no plan uses, for they were not measured.",
                   {{"reason", reason}}, count);
  }
  AddNetwork(sample, &families);
  families.Gauge("registered", "1 while the coordinator knows this agent.", {},
                 sample.registered ? 1 : 0);
  // Not heartbeat_gap_seconds: that is the coordinator's histogram, and a name has one type.
  families.Gauge("heartbeat_age_seconds", "Since the coordinator last answered a heartbeat.", {},
                 sample.heartbeat_gap_s);
  // job_id, because a scrape adds its own label `job`.
  for (const JobSample& job : sample.jobs) {
    families.Gauge("job_info", "1 for every worker that runs here: joins uuid to job.",
                   {{"job_id", job.job_id}, {"worker", job.worker_id}, {"uuid", job.uuid}}, 1);
  }
  return families.Text();
}

}  // namespace hyperframes
