#include "agent/service/link_report.h"

#include <glog/logging.h>

#include <algorithm>
#include <memory>
#include <string>

#include "agent/device/link_probe.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Bytes kProbeBytes = 16 * kMiB;

// A quarter of what is free at most: leases may be wanted at the same moment.
absl::StatusOr<std::unique_ptr<Memory>> ProbeMemory(Device* device) {
  return device->Allocate(
      std::max<Bytes>(4 * kKiB, std::min(kProbeBytes, device->free_bytes() / 4)));
}

absl::StatusOr<v1::LinkProfile> Measure(HostDevice* gpu, HostDevice* other, Direction direction,
                                        Tier tier, absl::Duration time_limit) {
  HF_ASSIGN_OR_RETURN(auto near, ProbeMemory(gpu));
  HF_ASSIGN_OR_RETURN(auto far, ProbeMemory(other));
  HF_ASSIGN_OR_RETURN(auto stream, gpu->CreateStream(direction, tier));
  LinkProbeOptions options;
  options.time_limit = time_limit;
  const bool out = direction == Direction::kOut;
  HF_ASSIGN_OR_RETURN(const LinkMeasurement measured,
                      ProbeLink(stream.get(), out ? *far : *near, out ? *near : *far, options));
  v1::LinkProfile link;
  link.set_from((out ? gpu : other)->description().uuid);
  link.set_to((out ? other : gpu)->description().uuid);
  link.set_bytes_per_second(measured.bytes_per_second);
  link.set_latency_s(absl::ToDoubleSeconds(measured.latency));
  link.set_kind("simulated");
  return link;
}

}  // namespace

std::vector<v1::LinkProfile> MeasureLinks(HostMachine* machine, absl::Duration time_limit) {
  std::vector<v1::LinkProfile> links;
  const auto add = [&](HostDevice* gpu, HostDevice* other, Direction direction, Tier tier) {
    absl::StatusOr<v1::LinkProfile> link = Measure(gpu, other, direction, tier, time_limit);
    if (link.ok()) {
      links.push_back(std::move(*link));
    } else {
      LOG(WARNING) << "the path between " << gpu->description().uuid << " and "
                   << other->description().uuid << " was not measured: " << link.status().message();
    }
  };
  for (const auto& gpu : machine->devices()) {
    for (const auto& peer : machine->devices()) {
      if (gpu != peer) add(gpu.get(), peer.get(), Direction::kOut, Tier::kPeer);
    }
    HostDevice* const host = machine->host();
    if (host == nullptr || host->description().total_bytes == 0) continue;
    add(gpu.get(), host, Direction::kOut, Tier::kHost);
    add(gpu.get(), host, Direction::kIn, Tier::kHost);
  }
  return links;
}

}  // namespace hyperframes
