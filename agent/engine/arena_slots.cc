#include "agent/engine/arena_slots.h"

#include <utility>

#include "common/status_macros.h"

namespace hyperframes {

ArenaSlots::ArenaSlots(EngineArena arena)
    : arena_(std::move(arena)), allocator_(arena_.memory->bytes()) {}

absl::StatusOr<Bytes> ArenaSlots::Allocate(
    Bytes bytes, Bytes preferred, std::vector<std::shared_ptr<const Event>>* before_write) {
  HF_ASSIGN_OR_RETURN(const Bytes offset, allocator_.Allocate(bytes, preferred));
  ForgetFinishedReads();
  for (const PendingRead& read : pending_reads_) {
    if (read.begin < offset + bytes && offset < read.end) before_write->push_back(read.event);
  }
  return offset;
}

void ArenaSlots::Free(Bytes offset, Bytes bytes, std::shared_ptr<const Event> last_reload) {
  // Cannot fail: the engine frees a storage's slot exactly once, when it forgets the storage.
  allocator_.Free(offset).IgnoreError();
  ForgetFinishedReads();
  if (last_reload == nullptr || last_reload->Done()) return;
  pending_reads_.push_back({offset, offset + bytes, std::move(last_reload)});
}

void ArenaSlots::ForgetFinishedReads() {
  while (!pending_reads_.empty() && pending_reads_.front().event->Done()) {
    pending_reads_.pop_front();
  }
}

}  // namespace hyperframes
