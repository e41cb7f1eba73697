#include "agent/arena/offset_allocator.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace hyperframes {

OffsetAllocator::OffsetAllocator(Bytes capacity)
    : capacity_(std::max(capacity, Bytes{0}) / kSlotAlignment * kSlotAlignment) {
  if (capacity_ > 0) AddFree(0, capacity_);
}

absl::StatusOr<Bytes> OffsetAllocator::Allocate(Bytes bytes, Bytes preferred) {
  if (bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot place a slot of ", bytes, " bytes: ask for at least 1"));
  }
  // Checked before rounding: near the largest number, rounding up would overflow.
  if (bytes > largest_free()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no free range for a slot of ", bytes, " bytes: the largest is ",
                     largest_free(), " of ", capacity_ - used_, " free bytes in ", capacity_));
  }
  const Bytes size = RoundUp(bytes);
  if (preferred >= 0 && preferred % kSlotAlignment == 0) {
    auto range = free_.upper_bound(preferred);
    if (range != free_.begin()) {
      --range;
      // Compared by what is left, since preferred + size may overflow.
      if (preferred - range->first < range->second &&
          range->second - (preferred - range->first) >= size) {
        Take(range, preferred, size);
        return preferred;
      }
    }
  }
  // Free ranges are multiples of the alignment, so one that holds `bytes` holds `size`.
  const Bytes offset = by_size_.lower_bound({size, 0})->second;
  Take(free_.find(offset), offset, size);
  return offset;
}

absl::Status OffsetAllocator::Free(Bytes offset) {
  const auto slot = slots_.find(offset);
  if (slot == slots_.end()) {
    return absl::NotFoundError(absl::StrCat("no slot starts at offset ", offset,
                                            ": it was freed already, or never given"));
  }
  Bytes begin = offset;
  Bytes end = offset + slot->second;
  used_ -= slot->second;
  slots_.erase(slot);

  auto next = free_.lower_bound(begin);
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      RemoveFree(previous);
    }
  }
  if (next != free_.end() && next->first == end) {
    end += next->second;
    RemoveFree(next);
  }
  AddFree(begin, end - begin);
  return absl::OkStatus();
}

void OffsetAllocator::AddFree(Bytes offset, Bytes size) {
  free_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void OffsetAllocator::RemoveFree(FreeRanges::iterator range) {
  by_size_.erase({range->second, range->first});
  free_.erase(range);
}

void OffsetAllocator::Take(FreeRanges::iterator range, Bytes offset, Bytes size) {
  const Bytes range_begin = range->first;
  const Bytes range_end = range->first + range->second;
  RemoveFree(range);
  if (range_begin < offset) AddFree(range_begin, offset - range_begin);
  if (offset + size < range_end) AddFree(offset + size, range_end - offset - size);
  slots_.emplace(offset, size);
  used_ += size;
}

}  // namespace hyperframes
