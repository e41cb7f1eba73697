#include "agent/transfer/traffic_meter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hyperframes {
namespace {

constexpr const char* kWord = "window";
constexpr size_t kLongestName = 63;
constexpr Bytes kMostBytes = Bytes{1} << 50;  // Of one window; far beyond what one can hold.

}  // namespace

bool IsNodeName(const std::string& name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

std::string WriteWindow(const TrafficWindow& window) {
  return absl::StrCat(kWord, " ", window.node, " ", DirectionName(window.direction), " ",
                      window.bytes, " ", absl::ToInt64Nanoseconds(window.busy), " ",
                      absl::ToUnixNanos(window.begin), " ", absl::ToUnixNanos(window.end), "\n");
}

absl::optional<TrafficWindow> ReadWindow(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  if (words.size() != 7 || words[0] != kWord || !IsNodeName(words[1])) return absl::nullopt;
  TrafficWindow window;
  window.node = words[1];
  if (words[2] == DirectionName(Direction::kIn)) {
    window.direction = Direction::kIn;
  } else if (words[2] != DirectionName(Direction::kOut)) {
    return absl::nullopt;
  }
  int64_t busy = 0, begin = 0, end = 0;
  if (!absl::SimpleAtoi(words[3], &window.bytes) || !absl::SimpleAtoi(words[4], &busy) ||
      !absl::SimpleAtoi(words[5], &begin) || !absl::SimpleAtoi(words[6], &end) ||
      window.bytes <= 0 || window.bytes > kMostBytes || busy <= 0 || begin < 0 || end < begin ||
      busy > end - begin) {
    return absl::nullopt;
  }
  window.busy = absl::Nanoseconds(busy);
  window.begin = absl::FromUnixNanos(begin);
  window.end = absl::FromUnixNanos(end);
  return window;
}

TrafficMeter::TrafficMeter(std::string node, const Clock* clock, Sink sink)
    : node_(std::move(node)), clock_(clock), sink_(std::move(sink)) {}

void TrafficMeter::Begin(Direction direction) {
  MutexLock lock(&mutex_);
  Lane& lane = lanes_[static_cast<int>(direction)];
  if (lane.under_way++ > 0) return;
  lane.since = clock_->Now();
  if (lane.open) return;
  lane.open = true;
  lane.window = TrafficWindow();
  lane.window.node = node_;
  lane.window.direction = direction;
  lane.window.begin = lane.since;
}

void TrafficMeter::End(Direction direction, Bytes bytes) {
  MutexLock lock(&mutex_);
  Lane& lane = lanes_[static_cast<int>(direction)];
  --lane.under_way;
  const absl::Time now = clock_->Now();
  TrafficWindow& window = lane.window;
  window.busy += now - std::exchange(lane.since, now);
  window.bytes += std::max<Bytes>(bytes, 0);
  const bool full = window.bytes >= kWindowBytes || window.busy >= kWindowBusy;
  if (bytes >= 0 && !full) return;
  window.end = now;
  // A window without a byte is a wait for the first one: a stall, that says no speed.
  if (bytes >= 0 && window.bytes > 0 && window.busy > absl::ZeroDuration()) {
    sink_(window);
  } else if (bytes >= 0) {
    return;
  }
  lane.open = lane.under_way > 0;
  window.bytes = 0;
  window.busy = absl::ZeroDuration();
  window.begin = now;
}

Crossing::Crossing(std::shared_ptr<TrafficMeter> meter, Direction direction)
    : meter_(std::move(meter)), direction_(direction) {
  if (meter_ != nullptr) meter_->Begin(direction_);
}

Crossing& Crossing::operator=(Crossing&& other) noexcept {
  std::swap(meter_, other.meter_);
  std::swap(direction_, other.direction_);
  return *this;
}

Crossing::~Crossing() {
  if (meter_ != nullptr) meter_->End(direction_, /*bytes=*/-1);
}

void Crossing::Arrived(Bytes bytes) {
  if (meter_ != nullptr) meter_->End(direction_, bytes);
  meter_ = nullptr;
}

}  // namespace hyperframes
