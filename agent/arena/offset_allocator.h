// Places slots inside one lease by offset: best fit, coalescing, aligned as reload buffers are. It
// knows no memory: only numbers, so that the same class serves real arenas and planning.
#ifndef HYPERFRAMES_AGENT_ARENA_OFFSET_ALLOCATOR_H_
#define HYPERFRAMES_AGENT_ARENA_OFFSET_ALLOCATOR_H_

#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/frame.h"
#include "common/units.h"

namespace hyperframes {

// Not thread-safe: its owner's lock guards it. Deterministic: same calls, same offsets.
class OffsetAllocator {
 public:
  // Manages [0, capacity), of which a tail shorter than kSlotAlignment is never used. A capacity
  // below zero counts as zero.
  explicit OffsetAllocator(Bytes capacity);

  // The offset of a free range of `bytes` rounded up to kSlotAlignment: at `preferred` when that is
  // aligned, inside and free, else in the smallest free range that fits (the lowest of equals).
  // InvalidArgument: bytes <= 0. ResourceExhausted: no free range is large enough.
  absl::StatusOr<Bytes> Allocate(Bytes bytes, Bytes preferred = -1);

  // Gives back the slot at `offset`. NotFound: no slot starts there (freed twice, or never given).
  absl::Status Free(Bytes offset);

  Bytes capacity() const { return capacity_; }
  // Bytes in slots, after rounding.
  Bytes used() const { return used_; }
  // The largest slot that Allocate could give now.
  Bytes largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

  static Bytes RoundUp(Bytes bytes) {
    return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  }

 private:
  using FreeRanges = std::map<Bytes, Bytes>;  // Offset -> size. Never two that touch.

  void AddFree(Bytes offset, Bytes size);
  void RemoveFree(FreeRanges::iterator range);
  // Cuts [offset, offset + size) out of `range`, which contains it.
  void Take(FreeRanges::iterator range, Bytes offset, Bytes size);

  const Bytes capacity_;
  Bytes used_ = 0;
  FreeRanges free_;
  std::set<std::pair<Bytes, Bytes>> by_size_;  // (size, offset) of every free range.
  std::map<Bytes, Bytes> slots_;               // Offset -> size.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_OFFSET_ALLOCATOR_H_
