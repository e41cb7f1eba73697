// What the engine knows of one storage that it moved, and the states of its life.
#ifndef HYPERFRAMES_AGENT_ENGINE_STORAGE_H_
#define HYPERFRAMES_AGENT_ENGINE_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "agent/device/device.h"
#include "agent/engine/frame_engine.h"
#include "common/frame.h"
#include "common/units.h"

namespace hyperframes {

enum class StorageState {
  kStored,     // In its slot, or on the way there.
  kReloading,  // A reload was started and nobody has waited for it yet.
  kReloaded,   // A consumer was ordered after the last reload.
};

// The legal moves. A storage leaves every state by Drop, which forgets it.
constexpr bool MayMove(StorageState from, StorageState to) {
  switch (to) {
    case StorageState::kStored:
      return false;  // Put makes it so, and nothing comes back.
    case StorageState::kReloading:
      return true;  // Any number of times: a retained graph is read again.
    case StorageState::kReloaded:
      return from != StorageState::kStored;  // Nobody may wait for a reload that never started.
  }
  return false;
}

struct Storage {
  StorageKey key;
  Bytes bytes = 0;
  Tier tier = Tier::kHost;
  size_t arena = 0;  // Index among the engine's arenas.
  Bytes offset = 0;
  std::shared_ptr<const Event> copied_out;  // Null while it waits for company.
  uint64_t checksum = 0;                    // With verify only.
  absl::Status failure;  // Of a copy in company, which nobody was there to be told of.

  StorageState state = StorageState::kStored;
  // Of the slot. Null before the first Fetch, and while that one waits for company.
  std::shared_ptr<const Event> last_reload;
  void* destination = nullptr;  // Of the last Fetch.
  bool reload_was_prefetch = false;
  bool counts_as_ahead = false;  // Its bytes are part of the prefetch limit.
  bool consumed = false;         // Recorded in the order of consumption.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_STORAGE_H_
