// What one agent knows of the speed of the ways to other nodes, from the windows of traffic that
// its hftransfers tell of.
#ifndef HYPERFRAMES_AGENT_TRANSFER_NETWORK_TABLE_H_
#define HYPERFRAMES_AGENT_TRANSFER_NETWORK_TABLE_H_

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/transfer/traffic_meter.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/units.h"

namespace hyperframes {

struct NetworkFigure {
  std::string node;  // The other one.
  double bytes_per_second = 0;
  absl::Duration age;  // Of the newest traffic in it.
  Bytes bytes = 0;     // That it was measured with.
};

// Thread-safe.
class NetworkTable {
 public:
  static constexpr size_t kMostNodes = 64;     // The one that was silent longest goes.
  static constexpr size_t kFewestWindows = 3;  // Of a direction, for a figure.
  static constexpr size_t kWindowsKept = 32;   // Of a node and direction, the newest.
  // Before the newest: a figure is as young as its newest traffic says.
  static constexpr absl::Duration kRemembered = absl::Minutes(5);
  static constexpr double kWorthTelling = 0.2;  // A smaller change of a figure is noise.

  explicit NetworkTable(const Clock* clock) : clock_(clock) {}

  void Add(const TrafficWindow& window) HF_EXCLUDES(mutex_);

  // By name. A node's figure is the slower direction's median over the kept windows, so that no
  // stall spoils it. Windows of several processes that overlap add up: what a way carries is what
  // all of them got, or a plan that shares it between them would divide it twice. A figure stays as
  // it was told until it has changed by more than kWorthTelling.
  std::vector<NetworkFigure> Figures() HF_EXCLUDES(mutex_);

 private:
  struct Way {
    std::deque<TrafficWindow> windows[kDirectionCount];
    absl::Time newest = absl::InfinitePast();
    double told = 0;
  };

  const Clock* const clock_;
  Mutex mutex_;
  std::map<std::string, Way> ways_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_NETWORK_TABLE_H_
