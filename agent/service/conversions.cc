#include "agent/service/conversions.h"

#include <map>
#include <string>

#include "agent/supervisor/process_identity.h"
#include "common/clock.h"

namespace hyperframes {
namespace {

constexpr size_t kLongestReason = 512;

}  // namespace

v1::LeaseReport ToProto(const LeaseRecord& record) {
  v1::LeaseReport report;
  report.set_lease_id(record.lease_id);
  report.set_job_id(record.job_id);
  report.set_rank(record.rank);
  report.set_device(record.device);
  report.set_tier(static_cast<v1::Tier>(record.tier));
  report.set_bytes(record.bytes);
  report.set_state(static_cast<v1::LeaseState>(record.state));
  report.set_release_reason(record.release_reason);
  return report;
}

v1::WorkerReport ToProto(const WorkerInfo& info, const CountersReading& counters) {
  v1::WorkerReport report;
  report.set_worker_id(info.spec.worker_id);
  report.set_job_id(info.spec.job_id);
  report.set_rank(info.spec.rank);
  report.set_gpu(info.spec.gpu);
  report.set_state(static_cast<v1::WorkerState>(info.status.state));
  report.set_pid(info.status.worker.pid);
  report.set_exit_code(info.status.exit_code);
  report.set_term_signal(info.status.term_signal);
  report.set_message(info.status.message);
  report.set_adopted(info.adopted);
  report.set_attached(info.attached);
  report.set_age_s(absl::ToDoubleSeconds(info.age));
  report.set_activation_bytes(counters.activation_bytes);
  report.set_activation_peak_bytes(counters.activation_peak_bytes);
  report.set_steps(counters.steps);
  // Another boot's clock tells nothing here.
  if (info.status.state == WorkerState::kExited && info.status.ended != absl::InfinitePast() &&
      info.status.shim.boot_id == BootId()) {
    report.set_ended_ago_s(absl::ToDoubleSeconds(MonotonicClock()->Now() - info.status.ended));
  }
  return report;
}

absl::StatusOr<LeaseRecord> FromProto(const v1::PrepareLeaseRequest& request) {
  if (request.tier() != v1::TIER_PEER && request.tier() != v1::TIER_HOST) {
    return absl::InvalidArgumentError("tier: a lease is for TIER_PEER or TIER_HOST, not " +
                                      std::to_string(static_cast<int>(request.tier())));
  }
  LeaseRecord record;
  record.lease_id = request.lease_id();
  record.job_id = request.job_id();
  record.rank = request.rank();
  record.token = request.token();
  record.device = request.device();
  record.tier = static_cast<Tier>(request.tier());
  record.bytes = request.bytes();
  return record;
}

v1::NetworkMeasurement ToProto(const NetworkFigure& figure) {
  v1::NetworkMeasurement measured;
  measured.set_node(figure.node);
  measured.set_bytes_per_second(figure.bytes_per_second);
  measured.set_age_s(absl::ToDoubleSeconds(figure.age));
  measured.set_bytes(figure.bytes);
  return measured;
}

std::vector<v1::GpuInfo> GpusOf(Node* node) {
  std::map<std::string, DeviceUsage> usage;
  for (const DeviceUsage& device : node->leases()->Usage()) usage[device.device] = device;
  const std::map<std::string, CountersReading> counters = node->counters().ByGpu();
  std::vector<v1::GpuInfo> gpus;
  for (const Device* const device : node->machine()->gpus()) {
    const DeviceDescription& description = device->description();
    v1::GpuInfo gpu;
    gpu.set_uuid(description.uuid);
    gpu.set_index(node->machine()->IndexOf(*device));
    gpu.set_name(description.name);
    gpu.set_backend(description.backend);
    gpu.set_total_bytes(description.total_bytes);
    gpu.set_reserve_bytes(usage[description.uuid].reserve_bytes);
    gpu.set_lent_bytes(usage[description.uuid].lent_bytes);
    gpu.set_occupied_bytes(usage[description.uuid].occupied_bytes);
    const absl::Status usable = node->machine()->CheckUsable(*device);
    gpu.set_unhealthy(!usable.ok());
    gpu.set_unhealthy_reason(std::string(usable.message().substr(0, kLongestReason)));
    const auto reading = counters.find(description.uuid);
    if (reading != counters.end()) gpu.set_used_bytes(reading->second.activation_bytes);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

Bytes HostLendable(Node* node) {
  return node->machine()->host() == nullptr ? 0
                                            : node->machine()->host()->description().total_bytes;
}

}  // namespace hyperframes
