#include "coordinator/membership/node_registry.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/membership/node_state.h"

namespace hyperframes {
namespace {

constexpr size_t kSupersededKept = 16;
constexpr size_t kLongestReason = 512;
constexpr int kMaxGpus = 64;
constexpr int kMaxLinks = 16384;
constexpr int kMaxReports = 4096;

absl::Status BadField(const std::string& field, const std::string& value,
                      const std::string& remedy) {
  return absl::InvalidArgumentError(absl::StrCat(field, " '", value.substr(0, 80), "': ", remedy));
}

absl::Status CheckName(const std::string& field, const std::string& name) {
  const bool fits = !name.empty() && name.size() <= 63 &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
                    });
  if (fits) return absl::OkStatus();
  return BadField(field, name, "1 to 63 letters, digits, '-', '_' or '.' are accepted");
}

template <typename Gpus>
absl::Status CheckGpus(const Gpus& gpus) {
  if (gpus.size() > kMaxGpus) {
    return BadField("gpus", absl::StrCat(gpus.size()), absl::StrCat("at most ", kMaxGpus));
  }
  for (int i = 0; i < gpus.size(); ++i) {
    const v1::GpuInfo& gpu = gpus[i];
    const std::string field = absl::StrCat("gpus[", i, "]");
    if (gpu.uuid().empty() || gpu.uuid().size() > 128) {
      return BadField(field + ".uuid", gpu.uuid(), "1 to 128 bytes");
    }
    for (int j = 0; j < i; ++j) {
      if (gpus[j].uuid() == gpu.uuid()) return BadField(field + ".uuid", gpu.uuid(), "named twice");
    }
    if (gpu.total_bytes() < 0 || gpu.reserve_bytes() < 0 || gpu.lent_bytes() < 0 ||
        gpu.used_bytes() < 0 || gpu.occupied_bytes() < 0) {
      return BadField(field, gpu.uuid(), "a count of bytes is negative");
    }
    if (gpu.unhealthy_reason().size() > kLongestReason) {
      return BadField(field + ".unhealthy_reason", gpu.unhealthy_reason(), "at most 512 bytes");
    }
  }
  return absl::OkStatus();
}

template <typename Message>
absl::Status CheckReports(const Message& message) {
  if (message.leases_size() > kMaxReports || message.workers_size() > kMaxReports) {
    return BadField("leases or workers",
                    absl::StrCat(message.leases_size(), " and ", message.workers_size()),
                    absl::StrCat("at most ", kMaxReports, " of each"));
  }
  for (const auto& lease : message.leases()) {
    if (lease.bytes() < 0) {
      return BadField("leases.bytes", absl::StrCat(lease.bytes()), "must not be negative");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNetwork(const v1::NetworkProfile& network) {
  const auto is_count = [](double value) { return std::isfinite(value) && value >= 0; };
  if (is_count(network.bytes_per_second()) && is_count(network.latency_s()) &&
      network.transfer_bytes() >= 0 && network.kind().size() <= 64) {
    return absl::OkStatus();
  }
  return BadField("network", network.kind(), "bandwidth, latency and bytes must not be negative");
}

absl::Status CheckDescription(const v1::RegisterRequest& request) {
  HF_RETURN_IF_ERROR(CheckName("node", request.node()));
  if (request.incarnation() == 0) return BadField("incarnation", "0", "a random number, not 0");
  if (request.agent_address().empty() || request.agent_address().size() > 256) {
    return BadField("agent_address", request.agent_address(), "host:port, at most 256 bytes");
  }
  if (request.host_lendable_bytes() < 0) {
    return BadField("host_lendable_bytes", absl::StrCat(request.host_lendable_bytes()),
                    "must not be negative");
  }
  HF_RETURN_IF_ERROR(CheckGpus(request.gpus()));
  if (request.links_size() > kMaxLinks) {
    return BadField("links", absl::StrCat(request.links_size()),
                    absl::StrCat("at most ", kMaxLinks));
  }
  for (const auto& link : request.links()) {
    if (!(link.bytes_per_second() > 0) || !std::isfinite(link.bytes_per_second()) ||
        !(link.latency_s() >= 0)) {
      return BadField("links", absl::StrCat(link.from(), " to ", link.to()),
                      "bandwidth must be positive and latency not negative");
    }
  }
  HF_RETURN_IF_ERROR(CheckNetwork(request.network()));
  HF_RETURN_IF_ERROR(MeasuredNetworks::Check(request.network_measured()));
  return CheckReports(request);
}

std::string Host(const std::string& address) { return address.substr(0, address.rfind(':')); }

// The same agent after a restart, though it may have another port: its socket path is guarded by a
// lock file on its host, so two agents that live at once never share one.
bool SameAgent(const Node& node, const v1::RegisterRequest& request) {
  if (node.info.agent_address() == request.agent_address()) return true;
  return Host(node.info.agent_address()) == Host(request.agent_address()) &&
         !node.worker_socket.empty() && node.worker_socket == request.worker_socket();
}

absl::Status OldIncarnation(const std::string& node, uint64_t newer, uint64_t old) {
  return absl::AbortedError(absl::StrCat("node '", node.substr(0, 64), "' has a newer incarnation ",
                                         newer, "; ", old, " is over"));
}

int64_t HostLentBytes(const v1::NodeInfo& info) {
  int64_t lent = 0;
  for (const auto& lease : info.leases()) {
    if (lease.tier() == v1::TIER_HOST && lease.state() != v1::LEASE_STATE_RELEASED) {
      lent += lease.bytes();
    }
  }
  return lent;
}

}  // namespace

NodeRegistry::NodeRegistry(Options options, const Clock* clock, HeartbeatLedger* ledger)
    : options_(options),
      clock_(clock),
      ledger_(ledger),
      last_tick_(clock->Now()),
      watching_since_(clock->Now()) {}

absl::Status NodeRegistry::Register(const v1::RegisterRequest& request) {
  HF_RETURN_IF_ERROR(CheckDescription(request));
  MutexLock lock(&mutex_);
  const auto found = entries_.find(request.node());
  if (found == entries_.end() && entries_.size() >= options_.max_nodes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the cluster has ", entries_.size(), " nodes, which is its bound"));
  }
  Entry& entry = found == entries_.end() ? entries_[request.node()] : found->second;
  HF_RETURN_IF_ERROR(AdmitLocked(request, &entry));
  v1::NodeInfo& info = entry.node.info;
  const v1::NodeState state = info.state();
  info.Clear();
  info.set_node(request.node());
  info.set_state(state);
  info.set_incarnation(request.incarnation());
  info.set_agent_address(request.agent_address());
  info.set_http_address(request.http_address());
  info.set_host_lendable_bytes(request.host_lendable_bytes());
  *info.mutable_gpus() = request.gpus();
  *info.mutable_links() = request.links();
  *info.mutable_network() = request.network();
  *info.mutable_leases() = request.leases();
  *info.mutable_workers() = request.workers();
  info.set_host_lent_bytes(HostLentBytes(info));
  entry.node.worker_socket = request.worker_socket();
  entry.measured.Take(request.network_measured(), clock_->Now());
  ledger_->Enter(request.node(), request.incarnation());
  if (state != v1::NODE_STATE_ALIVE) Move(&entry, v1::NODE_STATE_ALIVE);
  return absl::OkStatus();
}

absl::Status NodeRegistry::AdmitLocked(const v1::RegisterRequest& request, Entry* entry) {
  const v1::NodeInfo& info = entry->node.info;
  if (info.state() == v1::NODE_STATE_UNSPECIFIED || info.incarnation() == request.incarnation()) {
    return absl::OkStatus();
  }
  if (std::count(entry->superseded.begin(), entry->superseded.end(), request.incarnation()) > 0) {
    return OldIncarnation(request.node(), info.incarnation(), request.incarnation());
  }
  const bool living = info.state() == v1::NODE_STATE_ALIVE &&
                      ledger_->Silence(request.node()) < options_.suspected_after;
  if (living && !SameAgent(entry->node, request)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "node '", request.node(), "' is a living agent at ", info.agent_address(),
        "; start this one (", request.agent_address().substr(0, 80), ") with another --node"));
  }
  entry->superseded.push_back(info.incarnation());
  if (entry->superseded.size() > kSupersededKept) entry->superseded.pop_front();
  return absl::OkStatus();
}

absl::StatusOr<bool> NodeRegistry::Report(const v1::ReportRequest& request) {
  HF_RETURN_IF_ERROR(CheckGpus(request.gpus()));
  HF_RETURN_IF_ERROR(CheckReports(request));
  HF_RETURN_IF_ERROR(MeasuredNetworks::Check(request.network_measured()));
  MutexLock lock(&mutex_);
  const auto found = entries_.find(request.node());
  if (found == entries_.end()) return false;
  v1::NodeInfo& info = found->second.node.info;
  if (info.incarnation() != request.incarnation()) {
    return OldIncarnation(request.node(), info.incarnation(), request.incarnation());
  }
  if (info.state() == v1::NODE_STATE_OFFLINE) return false;
  *info.mutable_gpus() = request.gpus();
  *info.mutable_leases() = request.leases();
  *info.mutable_workers() = request.workers();
  info.set_host_lent_bytes(HostLentBytes(info));
  found->second.measured.Take(request.network_measured(), clock_->Now());
  return true;
}

void NodeRegistry::Tick() {
  MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  // Shorter gaps are a busy machine's scheduling, and no silence of suspected_after fits into them.
  const absl::Duration expected =
      std::max(2 * options_.tick_interval, options_.suspected_after / 2);
  if (now - last_tick_ > expected) {
    ++stalls_;
    watching_since_ = now;
    LOG(WARNING) << "this coordinator stood still for " << absl::FormatDuration(now - last_tick_)
                 << "; no node is declared OFFLINE for it";
  }
  last_tick_ = now;
  for (auto& named : entries_) TickEntry(&named.second, now - watching_since_);
}

void NodeRegistry::TickEntry(Entry* entry, absl::Duration watched) {
  const std::string& name = entry->node.info.node();
  const absl::Duration silence = ledger_->Silence(name);
  switch (entry->node.info.state()) {
    case v1::NODE_STATE_ALIVE:
      if (silence >= options_.suspected_after) Move(entry, v1::NODE_STATE_SUSPECTED);
      return;
    case v1::NODE_STATE_SUSPECTED:
      if (silence < options_.suspected_after) {
        Move(entry, v1::NODE_STATE_ALIVE);
      } else if (silence >= options_.offline_after &&
                 watched >= options_.offline_after - options_.suspected_after &&
                 ledger_->ForgetIfSilent(name, options_.offline_after)) {
        Move(entry, v1::NODE_STATE_OFFLINE);
      }
      return;
    default:
      return;
  }
}

void NodeRegistry::Move(Entry* entry, v1::NodeState to) {
  v1::NodeInfo& info = entry->node.info;
  CHECK(LegalNodeMove(info.state(), to))
      << info.node() << ": " << NodeStateName(info.state()) << " to " << NodeStateName(to);
  LOG(INFO) << "node " << info.node() << ": " << NodeStateName(info.state()) << " -> "
            << NodeStateName(to);
  info.set_state(to);
  if (to == v1::NODE_STATE_OFFLINE) entry->node.offline_since = clock_->Now();
}

Node NodeRegistry::Snapshot(const Entry& entry) const {
  Node node = entry.node;
  entry.measured.Fill(clock_->Now(), node.info.mutable_network_measured());
  const absl::Duration silence = ledger_->Silence(node.info.node());
  node.info.set_heartbeat_age_s(
      silence == absl::InfiniteDuration() ? -1 : absl::ToDoubleSeconds(silence));
  return node;
}

std::vector<Node> NodeRegistry::List() const {
  MutexLock lock(&mutex_);
  std::vector<Node> nodes;
  nodes.reserve(entries_.size());
  for (const auto& named : entries_) nodes.push_back(Snapshot(named.second));
  return nodes;
}

absl::StatusOr<Node> NodeRegistry::Find(const std::string& name) const {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("no node '", name.substr(0, 64), "' has registered"));
  }
  return Snapshot(found->second);
}

void NodeRegistry::Visit(const std::function<void(const Node&)>& visit) const {
  MutexLock lock(&mutex_);
  for (const auto& named : entries_) visit(named.second.node);
}

int64_t NodeRegistry::stalls() const {
  MutexLock lock(&mutex_);
  return stalls_;
}

}  // namespace hyperframes
