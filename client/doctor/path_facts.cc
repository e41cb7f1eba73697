#include "client/doctor/path_facts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "agent/device/path_probe.h"

namespace hyperframes {
namespace doctor {
namespace {

constexpr absl::Duration kLongestProbe = absl::Milliseconds(60);
constexpr absl::Duration kShortestProbe = absl::Milliseconds(3);
constexpr absl::Duration kOpeningContext = absl::Milliseconds(400);
constexpr Bytes kLargeCopyOnCuda = 64 * kMiB;  // NVLink is at a quarter less with 16 MiB.

struct Way {
  Device* gpu;
  Device* other;
  PathKind kind;
};

// To and from host memory, then each GPU's next neighbour, then the one after: when the time is up
// in the middle, every GPU has been looked at.
std::vector<Way> WaysOf(const std::vector<Device*>& gpus, Device* host) {
  std::vector<Way> ways;
  for (Device* gpu : gpus) {
    if (host == nullptr || host->description().total_bytes == 0) break;
    ways.push_back({gpu, host, PathKind::kToHost});
    ways.push_back({gpu, host, PathKind::kFromHost});
  }
  for (size_t distance = 1; distance < gpus.size(); ++distance) {
    for (size_t at = 0; at < gpus.size(); ++at) {
      ways.push_back({gpus[at], gpus[(at + distance) % gpus.size()], PathKind::kPeer});
    }
  }
  return ways;
}

PathFacts Describe(const Way& way) {
  PathFacts path;
  path.kind = way.kind;
  const bool in = way.kind == PathKind::kFromHost;
  path.from = (in ? way.other : way.gpu)->description().uuid;
  path.to = (in ? way.gpu : way.other)->description().uuid;
  return path;
}

void Measure(const Way& way, const LinkProbeOptions& options, PathFacts* path) {
  const Direction direction = way.kind == PathKind::kFromHost ? Direction::kIn : Direction::kOut;
  const Tier tier = way.kind == PathKind::kPeer ? Tier::kPeer : Tier::kHost;
  const absl::StatusOr<LinkMeasurement> measured =
      ProbePath(way.gpu, way.other, direction, tier, options);
  path->status = measured.status();
  // Too full to measure is no fault of the link's.
  path->out_of_time = measured.status().code() == absl::StatusCode::kOutOfRange;
  if (!measured.ok()) return;
  path->bytes_per_second = measured->bytes_per_second;
  path->latency = measured->latency;
}

// Time for one of `left` paths; zero when there is not enough.
absl::Duration Share(absl::Duration remaining, size_t left) {
  const absl::Duration share = std::min(remaining / static_cast<int64_t>(left), kLongestProbe);
  return share < kShortestProbe ? absl::ZeroDuration() : share;
}

GpuFacts FactsOf(const Device& gpu, bool simulated) {
  GpuFacts facts;
  facts.uuid = gpu.description().uuid;
  facts.name = gpu.description().name;
  facts.total_bytes = gpu.description().total_bytes;
  facts.free_bytes = gpu.free_bytes();
  facts.simulated = simulated;
  return facts;
}

}  // namespace

double SimulatedPromise(const HostMachine& machine, const Device& gpu, PathKind kind) {
  const HostDeviceOptions& options =
      machine.devices()[static_cast<size_t>(machine.IndexOf(gpu))]->options();
  return static_cast<double>(kind == PathKind::kPeer ? options.peer_promise : options.host_promise);
}

void SimulatedPathSource::Collect(absl::Time deadline, Facts* facts) {
  std::vector<Device*> gpus;
  for (const auto& gpu : machine_->devices()) gpus.push_back(gpu.get());
  for (const Device* gpu : gpus) facts->gpus.push_back(FactsOf(*gpu, /*simulated=*/true));
  const std::vector<Way> ways = WaysOf(gpus, machine_->host());
  for (size_t at = 0; at < ways.size(); ++at) {
    PathFacts path = Describe(ways[at]);
    path.link = "simulated";
    path.simulated_promise = SimulatedPromise(*machine_, *ways[at].gpu, path.kind);
    LinkProbeOptions options;
    options.clock = clock_;
    options.time_limit = Share(deadline - clock_->Now(), ways.size() - at);
    if (options.time_limit == absl::ZeroDuration()) {
      path.out_of_time = true;
    } else {
      Measure(ways[at], options, &path);
    }
    facts->paths.push_back(std::move(path));
  }
}

void CudaPathSource::Collect(absl::Time deadline, Facts* facts) {
  const auto machine = CudaMachine::Open({});
  facts->driver_tried = true;
  facts->driver = machine.status();
  facts->cuda_in_build = machine.status().code() != absl::StatusCode::kUnimplemented;
  if (!machine.ok()) return;
  if ((*machine)->gpus().size() > 1) deadline -= leaves_;
  for (const Device* gpu : (*machine)->gpus()) facts->gpus.push_back(FactsOf(*gpu, false));
  const std::vector<Way> ways = WaysOf((*machine)->gpus(), (*machine)->host());
  std::set<const Device*> opened;
  for (size_t at = 0; at < ways.size(); ++at) {
    const Way& way = ways[at];
    PathFacts path = Describe(way);
    path.link = way.kind == PathKind::kPeer ? (*machine)->LinkKind(*way.gpu, *way.other) : "pcie";
    LinkProbeOptions options;
    options.clock = clock_;
    options.large_bytes = kLargeCopyOnCuda;
    absl::Duration remaining = deadline - clock_->Now();
    if (opened.count(way.gpu) == 0) remaining -= kOpeningContext;
    options.time_limit = Share(remaining, ways.size() - at);
    if (way.kind == PathKind::kPeer && !(*machine)->CanReach(*way.gpu, *way.other)) {
      path.status = absl::FailedPreconditionError("CUDA has no peer access between these GPUs");
    } else if (options.time_limit == absl::ZeroDuration()) {
      path.out_of_time = true;
    } else {
      opened.insert(way.gpu);
      Measure(way, options, &path);
    }
    facts->paths.push_back(std::move(path));
  }
}

}  // namespace doctor
}  // namespace hyperframes
