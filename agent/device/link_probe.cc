#include "agent/device/link_probe.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Bytes kSmallBytes = 4 * kKiB;

absl::Duration Median(std::vector<absl::Duration> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

class Prober {
 public:
  Prober(Stream* stream, const Memory& to, const Memory& from, const LinkProbeOptions& options)
      : stream_(stream),
        to_(to),
        from_(from),
        options_(options),
        deadline_(options.clock->Now() + options.time_limit) {}

  absl::StatusOr<absl::Duration> TimeOne(Bytes bytes) {
    const absl::Time started = options_.clock->Now();
    HF_RETURN_IF_ERROR(stream_->Copy(to_.data(), from_.data(), bytes));
    stream_->Record()->Synchronize();
    ++copies_;
    return options_.clock->Now() - started;
  }

  bool HasTimeFor(absl::Duration expected) const {
    return options_.clock->Now() + expected <= deadline_;
  }

  // The median of up to options.copies copies, of which one was `first`, within `share` of the
  // time that is left.
  absl::StatusOr<absl::Duration> MedianOf(Bytes bytes, absl::Duration first, double share) {
    std::vector<absl::Duration> times = {first};
    absl::Duration left = (deadline_ - options_.clock->Now()) * share;
    while (static_cast<int>(times.size()) < options_.copies && times.back() <= left) {
      HF_ASSIGN_OR_RETURN(const absl::Duration taken, TimeOne(bytes));
      times.push_back(taken);
      left -= taken;
    }
    return Median(std::move(times));
  }

  int copies() const { return copies_; }

 private:
  Stream* const stream_;
  const Memory& to_;
  const Memory& from_;
  const LinkProbeOptions& options_;
  const absl::Time deadline_;
  int copies_ = 0;
};

}  // namespace

absl::StatusOr<LinkMeasurement> ProbeLink(Stream* stream, const Memory& to, const Memory& from,
                                          const LinkProbeOptions& options) {
  const Bytes most = std::min({to.bytes(), from.bytes(), options.large_bytes});
  if (most < kSmallBytes || options.copies < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a link probe needs at least ", kSmallBytes,
                                                   " bytes on both sides and one "
                                                   "copy; it got ",
                                                   most, " bytes and ", options.copies, " copies"));
  }
  Prober prober(stream, to, from, options);
  // The first copy touches pages and wakes the lane: it is the guess, not the measurement.
  HF_ASSIGN_OR_RETURN(const absl::Duration warm_up, prober.TimeOne(kSmallBytes));
  HF_ASSIGN_OR_RETURN(const absl::Duration small,
                      prober.MedianOf(kSmallBytes, warm_up, /*share=*/0.3));

  // Four times larger while the path is fast enough to time several copies of that size.
  Bytes large = kSmallBytes;
  absl::Duration large_first = small;
  while (large < most && prober.HasTimeFor(large_first * 4 * 3)) {
    large = std::min(large * 4, most);
    HF_ASSIGN_OR_RETURN(large_first, prober.TimeOne(large));
  }
  // Once more: growing touched the second half of the pages for the first time.
  if (large > kSmallBytes && prober.HasTimeFor(large_first)) {
    HF_ASSIGN_OR_RETURN(large_first, prober.TimeOne(large));
  }
  HF_ASSIGN_OR_RETURN(const absl::Duration large_median,
                      prober.MedianOf(large, large_first, /*share=*/1.0));

  LinkMeasurement measured;
  measured.largest_copy = large;
  measured.copies = prober.copies();
  const absl::Duration floor = absl::Nanoseconds(1);
  // Two sizes separate latency from speed. Where only the small size fitted into the time, or noise
  // made it no faster, all of the time is put down to the bytes.
  const bool separable = large >= 4 * kSmallBytes && large_median > small;
  const double seconds =
      absl::ToDoubleSeconds(std::max(separable ? large_median - small : large_median, floor));
  measured.bytes_per_second =
      static_cast<double>(separable ? large - kSmallBytes : large) / seconds;
  if (separable) {
    measured.latency = std::max(
        small - absl::Seconds(static_cast<double>(kSmallBytes) / measured.bytes_per_second),
        absl::ZeroDuration());
  }
  return measured;
}

}  // namespace hyperframes
