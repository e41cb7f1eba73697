#include "agent/transfer/network_table.h"

#include <algorithm>
#include <cmath>

namespace hyperframes {
namespace {

double SecondsOf(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

// What all windows of one way and direction moved per second while `one` was busy. Of another one
// that overlaps it is known when it began and ended, not when it was idle: its bytes count as
// spread evenly, and `one`'s busy time as well.
double RateDuring(const TrafficWindow& one, const std::deque<TrafficWindow>& all) {
  double rate = static_cast<double>(one.bytes) / SecondsOf(one.busy);
  for (const TrafficWindow& other : all) {
    if (&other == &one) continue;
    const absl::Duration both = std::min(one.end, other.end) - std::max(one.begin, other.begin);
    if (both <= absl::ZeroDuration()) continue;
    rate += static_cast<double>(other.bytes) / SecondsOf(other.end - other.begin) *
            (SecondsOf(both) / SecondsOf(one.end - one.begin));
  }
  return rate;
}

// The median; of two in the middle the lower.
double MedianRate(const std::deque<TrafficWindow>& windows) {
  std::vector<double> rates;
  rates.reserve(windows.size());
  for (const TrafficWindow& window : windows) rates.push_back(RateDuring(window, windows));
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>((rates.size() - 1) / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

}  // namespace

void NetworkTable::Add(const TrafficWindow& window) {
  if (window.bytes <= 0 || window.busy <= absl::ZeroDuration() || window.end <= window.begin) {
    return;
  }
  MutexLock lock(&mutex_);
  if (ways_.count(window.node) == 0 && ways_.size() >= kMostNodes) {
    ways_.erase(std::min_element(ways_.begin(), ways_.end(), [](const auto& a, const auto& b) {
      return a.second.newest < b.second.newest;
    }));
  }
  Way& way = ways_[window.node];
  // No process can tell of what has not been yet.
  way.newest = std::max(way.newest, std::min(window.end, clock_->Now()));
  std::deque<TrafficWindow>& windows = way.windows[static_cast<int>(window.direction)];
  windows.push_back(window);
  if (windows.size() > kWindowsKept) windows.pop_front();
  for (std::deque<TrafficWindow>& each : way.windows) {
    while (!each.empty() && each.front().end < way.newest - kRemembered) each.pop_front();
  }
}

std::vector<NetworkFigure> NetworkTable::Figures() {
  std::vector<NetworkFigure> figures;
  MutexLock lock(&mutex_);
  for (auto& [node, way] : ways_) {
    double slower = 0;
    Bytes bytes = 0;
    for (const std::deque<TrafficWindow>& windows : way.windows) {
      if (windows.size() < kFewestWindows) continue;
      const double rate = MedianRate(windows);
      slower = slower == 0 ? rate : std::min(slower, rate);
      for (const TrafficWindow& window : windows) bytes += window.bytes;
    }
    if (slower == 0) continue;
    if (way.told == 0 || std::abs(slower / way.told - 1) > kWorthTelling) way.told = slower;
    figures.push_back({node, way.told, clock_->Now() - way.newest, bytes});
  }
  return figures;
}

}  // namespace hyperframes
