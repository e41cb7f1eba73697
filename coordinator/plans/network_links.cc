#include "coordinator/plans/network_links.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

bool HasNetwork(const Node& node) {
  return node.info.state() == v1::NODE_STATE_ALIVE && node.info.network().bytes_per_second() > 0;
}

// By UUID, the node of every GPU that computes for the problem.
std::map<std::string, const Node*> NodesOfRanks(const std::vector<Node>& nodes,
                                                const v1::PlanProblem& problem) {
  std::map<std::string, const Node*> by_gpu;
  for (const v1::RankProblem& rank : problem.ranks()) by_gpu[rank.gpu()] = nullptr;
  for (const Node& node : nodes) {
    for (const v1::GpuInfo& gpu : node.info.gpus()) {
      const auto found = by_gpu.find(gpu.uuid());
      if (found != by_gpu.end()) found->second = &node;
    }
  }
  return by_gpu;
}

}  // namespace

bool AreConnected(const Node& a, const Node& b) {
  return a.info.node() != b.info.node() && HasNetwork(a) && HasNetwork(b);
}

double MeasuredBetween(const Node& node, const Node& other) {
  for (const auto& [from, to] : {std::make_pair(&node, &other), std::make_pair(&other, &node)}) {
    for (const v1::NetworkMeasurement& one : from->info.network_measured()) {
      if (one.node() != to->info.node()) continue;
      if (absl::Seconds(one.age_s()) <= kMeasurementIsFresh) return one.bytes_per_second();
    }
  }
  return 0;
}

v1::LinkProfile NetworkLink(const Node& node, const std::string& gpu, const Node& other,
                            const std::string& lender) {
  const v1::NetworkProfile& near = node.info.network();
  const v1::NetworkProfile& far = other.info.network();
  const v1::NetworkProfile& slower = near.bytes_per_second() <= far.bytes_per_second() ? near : far;
  v1::LinkProfile link;
  link.set_from(gpu);
  link.set_to(lender);
  const double measured = MeasuredBetween(node, other);
  link.set_bytes_per_second(measured > 0 ? std::min(measured, slower.bytes_per_second())
                                         : slower.bytes_per_second());
  link.set_latency_s(std::max(near.latency_s(), far.latency_s()));
  link.set_kind(slower.kind());
  link.set_shared_group(absl::StrCat("network:", node.info.node()));
  return link;
}

void AddNetworkLinks(const std::vector<Node>& nodes, const std::vector<v1::DeviceProfile>& offers,
                     v1::PlanProblem* problem) {
  const std::map<std::string, const Node*> ranks = NodesOfRanks(nodes, *problem);
  std::map<std::string, const Node*> by_name;
  for (const Node& node : nodes) by_name[node.info.node()] = &node;
  const auto reachable = [&](const v1::DeviceProfile& device) {
    return std::any_of(ranks.begin(), ranks.end(), [&](const auto& rank) {
      return rank.second != nullptr && AreConnected(*rank.second, *by_name.at(device.node()));
    });
  };
  std::vector<const v1::DeviceProfile*> lenders;
  for (const v1::DeviceProfile& device : offers) {
    if (device.is_host() || device.lendable_bytes() <= 0 || !reachable(device)) continue;
    lenders.push_back(&device);
  }
  std::sort(lenders.begin(), lenders.end(), [](const auto* a, const auto* b) {
    return std::forward_as_tuple(b->lendable_bytes(), a->uuid()) <
           std::forward_as_tuple(a->lendable_bytes(), b->uuid());
  });
  if (lenders.size() > kMostDistantLenders) lenders.resize(kMostDistantLenders);
  std::set<std::string> known;
  for (const v1::DeviceProfile& device : problem->devices()) known.insert(device.uuid());
  for (const v1::DeviceProfile* lender : lenders) {
    if (known.insert(lender->uuid()).second) *problem->add_devices() = *lender;
    const Node& other = *by_name.at(lender->node());
    for (const auto& [gpu, node] : ranks) {
      if (node == nullptr || !AreConnected(*node, other)) continue;
      *problem->add_links() = NetworkLink(*node, gpu, other, lender->uuid());
    }
  }
}

}  // namespace hyperframes
