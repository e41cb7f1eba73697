// Small storages that wait for each other, to travel one direction of one arena's lane together:
// one call of the driver and one pair of events for all. 64 KiB alone move at half the speed that
// they have in company, and cost five times the processor time. It knows neither lanes nor devices.
#ifndef HYPERFRAMES_AGENT_ENGINE_OPEN_BATCH_H_
#define HYPERFRAMES_AGENT_ENGINE_OPEN_BATCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "agent/device/device.h"
#include "agent/engine/frame_engine.h"
#include "common/units.h"

namespace hyperframes {

// Not thread-safe: the engine's lock guards it. An engine has one for each direction.
class OpenBatch {
 public:
  static constexpr size_t kMostParts = 64;
  static constexpr Bytes kMostBytes = 4 * kMiB;

  // What a batch may hold where at most `limit` bytes may be under way: a quarter, so that the
  // bytes that wait here never are what the limit makes somebody wait for.
  static Bytes RoomUnder(Bytes limit) { return std::min(kMostBytes, limit / 4); }
  // Whether a storage of `bytes` travels in company: two of them fit, and neither is larger than
  // `largest`.
  static bool IsSmall(Bytes bytes, Bytes largest, Bytes limit) {
    return bytes <= std::min(largest, RoomUnder(limit) / 2);
  }

  // Another one after each Clear; never 0.
  uint64_t number() const { return number_; }
  bool empty() const { return parts_.empty(); }
  size_t arena() const { return arena_; }
  // Whether a copy of `bytes` to or from `arena` may join.
  bool Takes(size_t arena, Bytes bytes, Bytes room) const {
    return empty() || (arena == arena_ && parts_.size() < kMostParts && bytes_ + bytes <= room);
  }
  bool IsFull(Bytes room) const { return parts_.size() >= kMostParts || bytes_ >= room; }
  bool Holds(StorageHandle handle) const {
    return std::find(handles_.begin(), handles_.end(), handle) != handles_.end();
  }

  // `compute_stream`: what is queued there until the batch starts comes before it.
  void Add(StorageHandle handle, size_t arena, const CopyPart& part, void* compute_stream);
  // The batch starts only after `event`. Null: nothing to wait for.
  void StartAfter(const std::shared_ptr<const Event>& event);
  void Clear();

  const std::vector<CopyPart>& parts() const { return parts_; }
  const std::vector<StorageHandle>& handles() const { return handles_; }
  const std::vector<void*>& compute_streams() const { return compute_streams_; }
  const std::vector<std::shared_ptr<const Event>>& start_after() const { return start_after_; }

 private:
  uint64_t number_ = 1;
  size_t arena_ = 0;
  Bytes bytes_ = 0;
  std::vector<CopyPart> parts_;
  std::vector<StorageHandle> handles_;
  std::vector<void*> compute_streams_;
  std::vector<std::shared_ptr<const Event>> start_after_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_OPEN_BATCH_H_
