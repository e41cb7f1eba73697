#include "agent/device/link_probe.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Bytes kSmallBytes = 4 * kKiB;

struct Times {
  absl::Duration median;
  absl::Duration shortest;
};

Times Summarize(std::vector<absl::Duration> times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
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

  // Up to options.copies copies, of which one took `first`, within `share` of the time left.
  absl::StatusOr<Times> TimeSeveral(Bytes bytes, absl::Duration first, double share) {
    std::vector<absl::Duration> times = {first};
    absl::Duration left = (deadline_ - options_.clock->Now()) * share;
    while (static_cast<int>(times.size()) < options_.copies && times.back() <= left) {
      HF_ASSIGN_OR_RETURN(const absl::Duration taken, TimeOne(bytes));
      times.push_back(taken);
      left -= taken;
    }
    return Summarize(std::move(times));
  }

  // The largest size, four times larger each time, of which the time left allows several copies.
  // *taken is the time of one of them.
  absl::StatusOr<Bytes> GrowFrom(Bytes bytes, Bytes most, absl::Duration* taken) {
    while (bytes < most) {
      if (!HasTimeFor(*taken * 4 * 3)) {
        // Perhaps that copy was unlucky: a busy machine took the processor away in the middle.
        if (!HasTimeFor(*taken * 2)) break;
        HF_ASSIGN_OR_RETURN(const absl::Duration again, TimeOne(bytes));
        *taken = std::min(*taken, again);
        if (!HasTimeFor(*taken * 4 * 3)) break;
      }
      bytes = std::min(bytes * 4, most);
      HF_ASSIGN_OR_RETURN(*taken, TimeOne(bytes));
    }
    return bytes;
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
  HF_ASSIGN_OR_RETURN(const Times small, prober.TimeSeveral(kSmallBytes, warm_up, /*share=*/0.3));
  absl::Duration taken = small.median;
  HF_ASSIGN_OR_RETURN(const Bytes large_bytes, prober.GrowFrom(kSmallBytes, most, &taken));
  // Once more: growing touched most of the pages for the first time.
  if (large_bytes > kSmallBytes && prober.HasTimeFor(taken)) {
    HF_ASSIGN_OR_RETURN(taken, prober.TimeOne(large_bytes));
  }
  HF_ASSIGN_OR_RETURN(const Times large, prober.TimeSeveral(large_bytes, taken, /*share=*/1.0));

  LinkMeasurement measured;
  measured.largest_copy = large_bytes;
  measured.copies = prober.copies();
  // Two sizes separate latency from speed. Only the shortest small copy is taken off: it is latency
  // for certain, where the others may be a busy machine's delays, which would make the path look
  // faster than any copy was. Where sizes hardly differ, all the time is put down to the bytes.
  const bool separable = large_bytes >= 4 * kSmallBytes && large.median > 2 * small.shortest;
  const Bytes bytes = separable ? large_bytes - kSmallBytes : large_bytes;
  const absl::Duration time = separable ? large.median - small.shortest : large.median;
  measured.bytes_per_second =
      static_cast<double>(bytes) / absl::ToDoubleSeconds(std::max(time, absl::Nanoseconds(1)));
  if (separable) {
    const double small_seconds = static_cast<double>(kSmallBytes) / measured.bytes_per_second;
    measured.latency = std::max(small.median - absl::Seconds(small_seconds), absl::ZeroDuration());
  }
  return measured;
}

}  // namespace hyperframes
