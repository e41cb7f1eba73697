// One lane of the engine: the stream of one direction and tier, with chaos mode's delays and
// planted faults. It orders work by explicit events only; it knows no storages and no slots.
#ifndef HYPERFRAMES_AGENT_ENGINE_LANE_H_
#define HYPERFRAMES_AGENT_ENGINE_LANE_H_

#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/device.h"
#include "agent/engine/frame_engine.h"
#include "common/frame.h"
#include "common/units.h"

namespace hyperframes {

// Not thread-safe: the engine's lock guards it, so that the order of work on the lane is the order
// in which slots were given out. Destruction finishes what was queued.
class Lane {
 public:
  static absl::StatusOr<std::unique_ptr<Lane>> Create(Device* device, Direction direction,
                                                      Tier tier, const ChaosOptions& chaos);
  // A lane of the memory itself, which the device's own lanes do not reach. Null: they do.
  static absl::StatusOr<std::unique_ptr<Lane>> CreateFor(Memory* memory, Direction direction,
                                                         Tier tier, const ChaosOptions& chaos);

  // Work queued later starts only after `event`. Null: nothing to wait for.
  absl::Status WaitFor(const std::shared_ptr<const Event>& event);

  // Queues a copy (behind a random delay in chaos mode). *done is set after it.
  absl::Status Copy(void* to, const void* from, Bytes bytes, std::shared_ptr<const Event>* done);

  // The same for copies of any order among themselves, with one delay before all of them.
  absl::Status CopyAll(const std::vector<CopyPart>& parts, std::shared_ptr<const Event>* done);

  // Waits until all that was queued is over: what a copy that failed halfway has queued still uses
  // its caller's memory.
  void Drain() { stream_->Record()->Synchronize(); }

  // Queues a fill of a freed slot with chaos mode's poison; nothing without chaos mode.
  absl::Status Poison(void* slot, Bytes bytes);

  // True when the event that orders this lane is left out on purpose.
  bool skips_its_event() const { return skips_its_event_; }

  absl::Duration copy_busy() const { return stream_->copy_busy(); }

 private:
  absl::Status DelayAtRandom();
  Lane(std::unique_ptr<Stream> stream, Direction direction, Tier tier, const ChaosOptions& chaos);

  const ChaosOptions chaos_;
  const bool skips_its_event_;
  std::mt19937_64 random_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_LANE_H_
