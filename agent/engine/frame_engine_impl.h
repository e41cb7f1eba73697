// The one implementation of FrameEngine, for every backend: what differs is behind Device.
#ifndef HYPERFRAMES_AGENT_ENGINE_FRAME_ENGINE_IMPL_H_
#define HYPERFRAMES_AGENT_ENGINE_FRAME_ENGINE_IMPL_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/engine/arena_slots.h"
#include "agent/engine/checksum.h"
#include "agent/engine/frame_engine.h"
#include "agent/engine/lane.h"
#include "agent/engine/open_batch.h"
#include "agent/engine/prefetch_order.h"
#include "agent/engine/stash.h"
#include "agent/engine/storage.h"
#include "common/mutex.h"

namespace hyperframes {

// "storage 3 of block 7, micro-batch 0".
std::string Describe(const StorageKey& key);

// Lock order: mutex_, then whatever a Stream locks inside; no stream calls back. Work is queued on
// lanes with mutex_ held, so that its order there is the order in which slots were given out. What
// may block for a copy (ComputeWait, Synchronize) and what takes long (checksums) runs without it.
class FrameEngineImpl final : public FrameEngine {
 public:
  // `checksums`: null without verify.
  FrameEngineImpl(Device* device, const FrameEngineOptions& options,
                  std::unique_ptr<Checksums> checksums)
      : device_(device),
        options_(options),
        checksums_(std::move(checksums)),
        exposed_before_(device->measured_exposed_wait()),
        stash_limit_(options.stash_limit),
        prefetch_limit_(options.prefetch_limit) {}
  ~FrameEngineImpl() override = default;  // lanes_ finish what was queued, before arenas_ go.

  absl::Status AddArena(EngineArena arena) HF_EXCLUDES(mutex_);  // Before the first Put only.

  absl::StatusOr<Placement> Put(const StorageKey& key, const void* source, Bytes bytes, Tier tier,
                                const std::string& gpu, Bytes preferred_offset,
                                void* compute_stream) override HF_EXCLUDES(mutex_);
  std::vector<StorageHandle> TakeReleasable(Bytes limit, void* compute_stream) override
      HF_EXCLUDES(mutex_);
  absl::Status Fetch(StorageHandle handle, void* destination, bool is_prefetch,
                     void* compute_stream) override HF_EXCLUDES(mutex_);
  absl::Status Wait(StorageHandle handle, void* compute_stream) override HF_EXCLUDES(mutex_);
  std::vector<StorageHandle> NextToPrefetch() override HF_EXCLUDES(mutex_);
  void Drop(StorageHandle handle) override HF_EXCLUDES(mutex_);
  absl::Status SetLimits(Bytes stash_limit, Bytes prefetch_limit) override HF_EXCLUDES(mutex_);
  absl::Status Quiesce() override HF_EXCLUDES(mutex_);
  EngineStats stats() const override HF_EXCLUDES(mutex_);
  Bytes SizeOf(StorageHandle handle) const override HF_EXCLUDES(mutex_);

 private:
  struct Slot {
    size_t arena = 0;
    Bytes offset = 0;
    std::vector<std::shared_ptr<const Event>> before_write;
  };

  // A slot in an arena of `tier` (and `gpu`, unless empty). False leaves a literal in *reason.
  bool FindSlot(Tier tier, const std::string& gpu, Bytes bytes, Bytes preferred, Slot* slot,
                const char** reason) HF_REQUIRES(mutex_);
  // FindSlot in the plan's tier, else in host memory, else kKeep; counts what overflowed.
  Placement Place(Tier tier, const std::string& gpu, Bytes bytes, Bytes preferred, Slot* slot)
      HF_REQUIRES(mutex_);
  // Copies out into `slot`, alone or in company, and takes the storage in. `produced`: as CopyOut.
  absl::Status SendOut(StorageHandle handle, const void* source, const Slot& slot,
                       const std::shared_ptr<const Event>& produced, void* compute_stream,
                       Storage storage) HF_REQUIRES(mutex_);
  // Queues the copy-out into `slot` behind everything that must come before it; `produced` null:
  // behind what the program has queued by now.
  absl::Status CopyOut(const void* source, Bytes bytes, const Slot& slot,
                       const std::shared_ptr<const Event>& produced, void* compute_stream,
                       std::shared_ptr<const Event>* copied_out) HF_REQUIRES(mutex_);
  // Makes every stream that the program has computed on in this step wait, not only
  // `compute_stream`: a source goes back to the allocator of the stream that it was made on, and
  // which one that is nobody says.
  absl::Status WaitForStash(Bytes limit, bool spare_newest, void* compute_stream)
      HF_EXCLUDES(mutex_);
  // Notes that the program computes on `compute_stream`. ResourceExhausted: on too many.
  absl::Status NoteComputeStream(void* compute_stream) HF_REQUIRES(mutex_);
  // ComputeWait, with the time for which it blocks counted as exposed. A done event costs nothing.
  absl::Status WaitExposed(const Event& event, void* compute_stream) HF_EXCLUDES(mutex_);
  // Whether a storage of that size travels with others in that direction.
  bool HasCompany(Direction direction, size_t arena, Bytes bytes) const HF_REQUIRES(mutex_);
  void JoinOut(StorageHandle handle, const void* source, Bytes bytes, const Slot& slot,
               void* compute_stream) HF_REQUIRES(mutex_);
  // False: it has to be fetched alone.
  bool JoinReloads(StorageHandle handle, Storage* storage, void* destination, void* compute_stream)
      HF_REQUIRES(mutex_);
  // Queues what waits for company. Where that fails, the storages keep the reason.
  void StartBatch(Direction direction) HF_REQUIRES(mutex_);
  // Queues the batches that `handle` is in. Called before anything that could wait for it.
  void StartBatchOf(StorageHandle handle) HF_REQUIRES(mutex_);
  OpenBatch* batch(Direction way) HF_REQUIRES(mutex_) { return &batches_[static_cast<int>(way)]; }
  // Orders `lane` behind what the program has queued on `compute_stream` by now.
  absl::Status WaitForProgram(Lane* lane, void* compute_stream) HF_REQUIRES(mutex_);
  void CountReload(Storage* storage, void* destination, bool is_prefetch) HF_REQUIRES(mutex_);
  // Whether `storage` should be reloaded next within the limit; counts it in *ahead when it is.
  // `is_first`: nothing else is named in this call yet.
  bool TakesPrefetch(const Storage& storage, bool is_first, Bytes* ahead) const HF_REQUIRES(mutex_);
  void NoLongerAhead(Storage* storage) HF_REQUIRES(mutex_);
  // The lane to and from an arena: its memory's own where it has one.
  Lane* LaneOf(Direction direction, size_t arena) HF_REQUIRES(mutex_);
  // Waits until the last reload of `storage` is on this node. Unavailable names storage and lease.
  absl::Status AwaitArrival(const Storage& storage) HF_EXCLUDES(mutex_);
  // Whether its reload has brought the bytes that were put. DataLoss names it.
  absl::Status CheckReload(const Storage& storage) HF_EXCLUDES(mutex_);

  Device* const device_;
  const FrameEngineOptions options_;
  const std::unique_ptr<Checksums> checksums_;
  const absl::Duration exposed_before_;  // What the device had measured when this engine began.

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<ArenaSlots>> arenas_ HF_GUARDED_BY(mutex_);
  // After arenas_: lanes are destroyed, and with it drained, before the memory is unmapped.
  std::unique_ptr<Lane> lanes_[kDirectionCount][kTierCount] HF_GUARDED_BY(mutex_);
  struct OwnLanes {
    std::unique_ptr<Lane> lanes[kDirectionCount];
  };
  std::vector<OwnLanes> own_lanes_ HF_GUARDED_BY(mutex_);  // As many as arenas_.
  StorageHandle next_handle_ HF_GUARDED_BY(mutex_) = 1;
  Bytes stash_limit_ HF_GUARDED_BY(mutex_);
  Bytes prefetch_limit_ HF_GUARDED_BY(mutex_);
  std::map<StorageHandle, Storage> storages_ HF_GUARDED_BY(mutex_);  // Ascending: in Put order.
  absl::flat_hash_map<StorageKey, StorageHandle> handle_of_key_ HF_GUARDED_BY(mutex_);
  Stash stash_ HF_GUARDED_BY(mutex_);
  OpenBatch batches_[kDirectionCount] HF_GUARDED_BY(mutex_);
  StorageHandle last_offered_ HF_GUARDED_BY(mutex_) = 0;  // By NextToPrefetch; 0 once it came.
  PrefetchOrder order_ HF_GUARDED_BY(mutex_);
  size_t puts_in_step_ HF_GUARDED_BY(mutex_) = 0;
  std::vector<void*> compute_streams_ HF_GUARDED_BY(mutex_);  // Of this step; nearly always one.
  Bytes ahead_bytes_ HF_GUARDED_BY(mutex_) = 0;               // Prefetched and not yet waited for.
  EngineStats counters_ HF_GUARDED_BY(mutex_);                // Gauges are filled in by stats().
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_FRAME_ENGINE_IMPL_H_
