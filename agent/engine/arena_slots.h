// The slots of one arena. A freed slot can be handed out at once, although a reload from it may
// still run: the events of such reloads are kept here, and whoever writes the range next waits for
// them on its lane. So memory is reused without anybody waiting on a processor.
#ifndef HYPERFRAMES_AGENT_ENGINE_ARENA_SLOTS_H_
#define HYPERFRAMES_AGENT_ENGINE_ARENA_SLOTS_H_

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/arena/offset_allocator.h"
#include "agent/engine/frame_engine.h"
#include "common/units.h"

namespace hyperframes {

// Not thread-safe: the engine's lock guards it.
class ArenaSlots {
 public:
  explicit ArenaSlots(EngineArena arena);

  const EngineArena& arena() const { return arena_; }
  char* At(Bytes offset) const { return arena_.memory->data() + offset; }

  // As OffsetAllocator::Allocate. *before_write receives the events of reloads that may still read
  // the range.
  absl::StatusOr<Bytes> Allocate(Bytes bytes, Bytes preferred,
                                 std::vector<std::shared_ptr<const Event>>* before_write);

  // Gives back a slot of `bytes`, from which `last_reload` (null: none) was the last reload.
  void Free(Bytes offset, Bytes bytes, std::shared_ptr<const Event> last_reload);

  Bytes used() const { return allocator_.used(); }
  Bytes capacity() const { return allocator_.capacity(); }
  Bytes largest_free() const { return allocator_.largest_free(); }

 private:
  struct PendingRead {
    Bytes begin;
    Bytes end;
    std::shared_ptr<const Event> event;
  };

  // Looks at the oldest only: one lane carries an arena's reloads out in order, and each look is a
  // call of the driver. A younger one that is done may stay; to wait for it costs nothing.
  void ForgetFinishedReads();

  const EngineArena arena_;
  OffsetAllocator allocator_;
  // Of freed slots only; at most as many as there are reloads under way.
  std::deque<PendingRead> pending_reads_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_ARENA_SLOTS_H_
