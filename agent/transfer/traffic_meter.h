// How fast frames go to and from one other node, seen by the hftransfer that moves them: bytes over
// the time for which some were under way, cut into windows. It measures traffic that is there
// anyway, and adds none.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TRAFFIC_METER_H_
#define HYPERFRAMES_AGENT_TRANSFER_TRAFFIC_METER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/clock.h"
#include "common/frame.h"
#include "common/mutex.h"
#include "common/units.h"

namespace hyperframes {

// A window is over at either: enough for the start of a piece to weigh nothing, and little enough
// for one step of training to make several.
constexpr Bytes kWindowBytes = 32 * kMiB;
constexpr absl::Duration kWindowBusy = absl::Milliseconds(100);

struct TrafficWindow {
  std::string node;  // The other one.
  Direction direction = Direction::kOut;
  Bytes bytes = 0;
  absl::Duration busy;  // At most end - begin: the wire may have been idle in between.
  absl::Time begin;     // Of MonotonicClock, which all processes of a machine share.
  absl::Time end;
};

// One line of text, with its end, shorter than 256 bytes.
std::string WriteWindow(const TrafficWindow& window);
// Reads it back, without its end. Nothing: the line is none, or says what cannot be.
absl::optional<TrafficWindow> ReadWindow(const std::string& line);

// Whether a text can be a node's name; what names a lease's node comes from a training process.
bool IsNodeName(const std::string& name);

// Shared by all leases of one process on that node. Thread-safe.
class TrafficMeter {
 public:
  // Told each window that is full, with the meter's lock held: must not block.
  using Sink = std::function<void(const TrafficWindow&)>;

  TrafficMeter(std::string node, const Clock* clock, Sink sink);

  void Begin(Direction direction) HF_EXCLUDES(mutex_);
  // Ends what one Begin began; `bytes` of it have arrived. Negative: nobody knows what did, and
  // the window under way is given up, for a peer that fell silent is no slow network.
  void End(Direction direction, Bytes bytes) HF_EXCLUDES(mutex_);

 private:
  struct Lane {
    int under_way = 0;
    absl::Time since;  // With some under way: what is before it is counted in the window.
    bool open = false;
    TrafficWindow window;
  };

  const std::string node_;
  const Clock* const clock_;
  const Sink sink_;
  Mutex mutex_;
  Lane lanes_[kDirectionCount] HF_GUARDED_BY(mutex_);
};

// One piece under way. Empty ones measure nothing. Dropped without an Arrived, it is given up.
class Crossing {
 public:
  Crossing() = default;
  // `meter` may be null.
  Crossing(std::shared_ptr<TrafficMeter> meter, Direction direction);
  Crossing(Crossing&& other) noexcept = default;
  Crossing& operator=(Crossing&& other) noexcept;
  ~Crossing();

  // Once.
  void Arrived(Bytes bytes);

 private:
  std::shared_ptr<TrafficMeter> meter_;
  Direction direction_ = Direction::kOut;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TRAFFIC_METER_H_
