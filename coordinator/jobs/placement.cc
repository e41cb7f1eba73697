#include "coordinator/jobs/placement.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

struct NodeShare {
  std::string node;
  std::vector<FreeGpu> free;
  size_t taken = 0;
};

std::vector<NodeShare> ByNode(const std::vector<FreeGpu>& free) {
  std::map<std::string, NodeShare> nodes;
  for (const FreeGpu& gpu : free) {
    nodes[gpu.node].node = gpu.node;
    nodes[gpu.node].free.push_back(gpu);
  }
  std::vector<NodeShare> shares;
  for (auto& named : nodes) {
    std::sort(named.second.free.begin(), named.second.free.end(),
              [](const FreeGpu& a, const FreeGpu& b) {
                return std::tie(a.lends, a.index, a.uuid) < std::tie(b.lends, b.index, b.uuid);
              });
    shares.push_back(std::move(named.second));
  }
  // Most free first; names are already in order, and the sort is stable.
  std::stable_sort(shares.begin(), shares.end(), [](const NodeShare& a, const NodeShare& b) {
    return a.free.size() > b.free.size();
  });
  return shares;
}

void Pack(size_t ranks, std::vector<NodeShare>* shares) {
  while (ranks > 0) {
    // The smallest node that takes all that is left, or else the largest there is.
    NodeShare* best = nullptr;
    for (NodeShare& share : *shares) {
      if (share.taken > 0) continue;
      if (best == nullptr || share.free.size() >= ranks) best = &share;
    }
    best->taken = std::min(ranks, best->free.size());
    ranks -= best->taken;
  }
}

void Spread(size_t ranks, std::vector<NodeShare>* shares) {
  while (ranks > 0) {
    for (NodeShare& share : *shares) {
      if (ranks == 0 || share.taken == share.free.size()) continue;
      ++share.taken;
      --ranks;
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<Seat>> PlaceGang(int ranks, v1::JobSpec::Placement placement,
                                            const std::vector<FreeGpu>& free) {
  if (free.size() < static_cast<size_t>(ranks)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(ranks, " GPUs are needed, ", free.size(), " are free"));
  }
  std::vector<NodeShare> shares = ByNode(free);
  if (placement == v1::JobSpec::PLACEMENT_SPREAD) {
    Spread(static_cast<size_t>(ranks), &shares);
  } else {
    Pack(static_cast<size_t>(ranks), &shares);
  }
  std::sort(shares.begin(), shares.end(),
            [](const NodeShare& a, const NodeShare& b) { return a.node < b.node; });
  std::vector<Seat> seats;
  for (const NodeShare& share : shares) {
    for (size_t i = 0; i < share.taken; ++i) {
      seats.push_back(Seat{share.node, share.free[i].uuid, static_cast<int32_t>(i),
                           static_cast<int32_t>(share.taken)});
    }
  }
  return seats;
}

}  // namespace hyperframes
