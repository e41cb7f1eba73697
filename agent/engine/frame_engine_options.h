// How a frame engine is to run: its limits, its checks, and the faults of chaos mode.
#ifndef HYPERFRAMES_AGENT_ENGINE_FRAME_ENGINE_OPTIONS_H_
#define HYPERFRAMES_AGENT_ENGINE_FRAME_ENGINE_OPTIONS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/frame.h"
#include "common/units.h"

namespace hyperframes {

// Faults planted on purpose, to prove that chaos mode would find a missing event in that lane.
struct ChaosOptions {
  bool enabled = false;
  uint64_t seed = 1;                                     // Same seed, same delays.
  absl::Duration longest_delay = absl::Milliseconds(2);  // Drawn per copy, per lane.
  uint8_t poison = 0xA5;                                 // Freed slots are filled with it.
  // When set, the engine leaves out the one event that orders this lane: for kOut the wait before a
  // source is released, for kIn the wait before a reload reads its slot.
  bool skip_event = false;
  Direction skip_direction = Direction::kOut;
  Tier skip_tier = Tier::kPeer;
};

struct FrameEngineOptions {
  Bytes stash_limit =
      64 * kMiB;  // Sources held while their copy-out runs, at most (or one storage).
  Bytes prefetch_limit =
      64 * kMiB;  // Reloads started ahead of their consumer, at most (or one storage).
  // Storages of at most this size travel in company (see FrameEngine); 0: each alone.
  Bytes largest_packed = kMiB;
  // Checksum at Put, compared at Wait: DataLoss names the storage. Both wait for the copies.
  bool verify = false;
  ChaosOptions chaos;
  const Clock* clock = MonotonicClock();
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_FRAME_ENGINE_OPTIONS_H_
