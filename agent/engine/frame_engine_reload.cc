// The way back: fetches, waits for them, and what to fetch ahead.
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/engine/frame_engine_impl.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

absl::Status UnknownHandle(const char* call, StorageHandle handle) {
  return absl::NotFoundError(
      absl::StrCat(call, " of handle ", handle, ": it was dropped already, or never given"));
}

}  // namespace

absl::Status FrameEngineImpl::Fetch(StorageHandle handle, void* destination, bool is_prefetch,
                                    void* compute_stream) {
  if (destination == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot fetch handle ", handle, " into a null destination"));
  }
  MutexLock lock(&mutex_);
  const auto found = storages_.find(handle);
  if (found == storages_.end()) return UnknownHandle("fetch", handle);
  Storage& storage = found->second;
  StartBatchOf(handle);
  HF_RETURN_IF_ERROR(storage.failure);
  if (is_prefetch && JoinReloads(handle, &storage, destination, compute_stream)) {
    return absl::OkStatus();
  }
  Lane* const lane = LaneOf(Direction::kIn, storage.arena);
  // The destination may be memory that earlier work on the compute stream still uses.
  HF_RETURN_IF_ERROR(WaitForProgram(lane, compute_stream));
  if (!lane->skips_its_event()) HF_RETURN_IF_ERROR(lane->WaitFor(storage.copied_out));
  const char* const slot = arenas_[storage.arena]->At(storage.offset);
  HF_RETURN_IF_ERROR(lane->Copy(destination, slot, storage.bytes, &storage.last_reload));
  CountReload(&storage, destination, is_prefetch);
  return absl::OkStatus();
}

bool FrameEngineImpl::JoinReloads(StorageHandle handle, Storage* storage, void* destination,
                                  void* compute_stream) {
  if (last_offered_ == 0) return false;  // Nobody knows whether others follow.
  const bool is_last = handle == last_offered_;
  if (is_last) last_offered_ = 0;
  if (!HasCompany(Direction::kIn, storage->arena, storage->bytes)) {
    StartBatch(Direction::kIn);  // A large one does not overtake those before it.
    return false;
  }
  OpenBatch* const open = batch(Direction::kIn);
  const Bytes room = OpenBatch::RoomUnder(prefetch_limit_);
  if (!open->Takes(storage->arena, storage->bytes, room)) StartBatch(Direction::kIn);
  const char* const slot = arenas_[storage->arena]->At(storage->offset);
  open->Add(handle, storage->arena, {destination, slot, storage->bytes}, compute_stream);
  if (!LaneOf(Direction::kIn, storage->arena)->skips_its_event()) {
    open->StartAfter(storage->copied_out);
  }
  CountReload(storage, destination, /*is_prefetch=*/true);
  if (is_last || open->IsFull(room)) StartBatch(Direction::kIn);
  return true;
}

void FrameEngineImpl::CountReload(Storage* storage, void* destination, bool is_prefetch) {
  if (storage->destination == nullptr) counters_.reload_bytes += storage->bytes;
  storage->destination = destination;
  storage->state = StorageState::kReloading;
  storage->reload_was_prefetch = is_prefetch;
  if (is_prefetch && !storage->counts_as_ahead) {
    storage->counts_as_ahead = true;
    ahead_bytes_ += storage->bytes;
  }
  ++counters_.fetches[static_cast<int>(storage->tier)];
  counters_.bytes_in[static_cast<int>(storage->tier)] += storage->bytes;
}

absl::Status FrameEngineImpl::Wait(StorageHandle handle, void* compute_stream) {
  Storage waited;  // A copy: other threads may drop the storage while this one waits.
  {
    MutexLock lock(&mutex_);
    const auto found = storages_.find(handle);
    if (found == storages_.end()) return UnknownHandle("wait", handle);
    Storage& storage = found->second;
    if (!MayMove(storage.state, StorageState::kReloaded)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "wait for handle ", handle, " (", Describe(storage.key), ") without a fetch before it"));
    }
    if (storage.state == StorageState::kReloading) {
      ++(storage.reload_was_prefetch ? counters_.prefetch_hits : counters_.prefetch_misses);
    }
    if (batch(Direction::kIn)->Holds(handle)) StartBatch(Direction::kIn);
    NoLongerAhead(&storage);
    if (!storage.consumed) order_.Consumed(storage.key);
    storage.consumed = true;
    waited = storage;
  }
  HF_RETURN_IF_ERROR(waited.failure);
  HF_RETURN_IF_ERROR(AwaitArrival(waited));
  HF_RETURN_IF_ERROR(WaitExposed(*waited.last_reload, compute_stream));
  {
    MutexLock lock(&mutex_);
    const auto found = storages_.find(handle);
    // Not when somebody has fetched it again meanwhile: that reload is still to be waited for.
    if (found != storages_.end() && found->second.last_reload == waited.last_reload) {
      found->second.state = StorageState::kReloaded;
    }
  }
  return checksums_ == nullptr ? absl::OkStatus() : CheckReload(waited);
}

absl::Status FrameEngineImpl::CheckReload(const Storage& storage) {
  HF_ASSIGN_OR_RETURN(const uint64_t now, checksums_->Of(storage.destination, storage.bytes,
                                                         storage.last_reload->OnDevice()));
  if (now == storage.checksum) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(Describe(storage.key), " (", storage.bytes,
                                          " bytes) came back from tier ", TierName(storage.tier),
                                          " with other bytes than were put; stop this step"));
}

absl::Status FrameEngineImpl::AwaitArrival(const Storage& storage) {
  const absl::Time started = options_.clock->Now();
  absl::Status status = storage.last_reload->Arrived();
  if (device_->compute_wait_blocks()) {
    MutexLock lock(&mutex_);
    counters_.exposed_wait += options_.clock->Now() - started;
  }
  if (status.ok()) return status;
  // The lane was let go on, and writes what means nothing: the caller may free the destination.
  storage.last_reload->Synchronize();
  return absl::Status(status.code(),
                      absl::StrCat(Describe(storage.key), " (", storage.bytes,
                                   " bytes) cannot be reloaded: ", status.message()));
}

void FrameEngineImpl::NoLongerAhead(Storage* storage) {
  if (!storage->counts_as_ahead) return;
  storage->counts_as_ahead = false;
  ahead_bytes_ -= storage->bytes;
}

bool FrameEngineImpl::TakesPrefetch(const Storage& storage, bool is_first, Bytes* ahead) const {
  // At least one, however large: a limit below the largest storage must not end prefetching.
  if (*ahead > 0 && *ahead + storage.bytes > prefetch_limit_) return false;
  // Small ones are named once there is room for company, or each would be reloaded alone as the
  // one before it is consumed.
  if (is_first && *ahead > prefetch_limit_ - OpenBatch::RoomUnder(prefetch_limit_) &&
      HasCompany(Direction::kIn, storage.arena, storage.bytes)) {
    return false;
  }
  *ahead += storage.bytes;
  return true;
}

std::vector<StorageHandle> FrameEngineImpl::NextToPrefetch() {
  MutexLock lock(&mutex_);
  StartBatch(Direction::kIn);
  std::vector<StorageHandle> next;
  Bytes ahead = ahead_bytes_;
  // False: `handle` is the first that finds no room.
  const auto take = [&](StorageHandle handle) {
    mutex_.AssertHeld();
    const Storage& storage = storages_.at(handle);
    if (storage.state != StorageState::kStored) return true;
    if (next.size() == OpenBatch::kMostParts || !TakesPrefetch(storage, next.empty(), &ahead)) {
      return false;
    }
    next.push_back(handle);
    return true;
  };
  if (order_.has_learned()) {
    for (const StorageKey& key : order_) {
      const auto handle = handle_of_key_.find(key);
      if (handle != handle_of_key_.end()) {
        if (!take(handle->second)) break;
        continue;
      }
      // Not in this step, or not yet: what is put in between is wanted before all that follows.
      ahead += order_.BytesPutLate(key);
    }
  } else {
    for (auto it = storages_.rbegin(); it != storages_.rend() && take(it->first); ++it) {
    }
  }
  last_offered_ = next.size() > 1 ? next.back() : 0;
  return next;
}

}  // namespace hyperframes
