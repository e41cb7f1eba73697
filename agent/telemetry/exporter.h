// What this node knows, as Prometheus text. Every scrape builds its families anew from a snapshot:
// prometheus-cpp never forgets a family, so nothing is registered that could outlive its cause.
#ifndef HYPERFRAMES_AGENT_TELEMETRY_EXPORTER_H_
#define HYPERFRAMES_AGENT_TELEMETRY_EXPORTER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/telemetry/counters_reader.h"
#include "common/units.h"

namespace hyperframes {

struct DeviceSample {
  std::string uuid;
  bool is_host = false;
  Bytes total = 0;
  Bytes reserved = 0;
  Bytes lent = 0;
  Bytes largest_free = 0;
};

struct JobSample {
  std::string job_id;
  std::string worker_id;
  std::string uuid;
};

// Values of one moment. Labels: uuid, tier, direction, reason, state, kind, peer (another node);
// job identity on hyperframes_job_info alone.
struct NodeSample {
  std::vector<DeviceSample> devices;
  std::map<std::string, CountersReading> counters_by_gpu;
  std::map<std::string, double> water_level_high;   // By GPU, since the agent started.
  std::map<std::string, int64_t> leases_reclaimed;  // By reason; a bounded set.
  std::map<std::string, int64_t> workers_by_state;
  std::map<std::string, int64_t> worker_exits;  // By "ok", "exit_code", "signal".
  int64_t worker_restarts = 0;                  // Starts of a second or later attempt.
  std::vector<JobSample> jobs;                  // Workers that run.
  int64_t mappings_opened = 0;
  int64_t mappings_closed = 0;
  int64_t links_measured = 0;
  std::map<std::string, int64_t> links_unmeasured;  // By reason; a bounded set.
  std::string network_kind;     // "infiniband", "roce", "ethernet", ...; empty: no network is used.
  double network_promised = 0;  // Bytes per second.
  std::map<std::string, double> network_measured;  // By the other node; at most 64.
  bool registered = false;
  double heartbeat_gap_s = 0;  // Since the last answered heartbeat.
};

// Peak bytes over a step, own and lent, divided by the bytes of the GPU that may be used.
double WaterLevel(const DeviceSample& device, const CountersReading& counters);

// The text exposition format.
std::string ExportMetrics(const NodeSample& sample);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TELEMETRY_EXPORTER_H_
