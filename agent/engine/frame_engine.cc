#include "agent/engine/frame_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/engine/frame_engine_impl.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kNoLease = "no_lease";
constexpr const char* kLeaseFull = "lease_full";
constexpr const char* kLeaseFragmented = "lease_fragmented";
constexpr size_t kMostComputeStreams = 128;  // torch's pools hold 64 per GPU.

absl::Status CheckLimits(Bytes stash_limit, Bytes prefetch_limit) {
  if (stash_limit >= 0 && prefetch_limit >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("stash_limit is ", stash_limit,
                                                 " and prefetch_limit is ", prefetch_limit,
                                                 " bytes; both must be 0 or more"));
}

absl::Status CheckOptions(const Device* device, const std::vector<EngineArena>& arenas,
                          const FrameEngineOptions& options) {
  if (device == nullptr) return absl::InvalidArgumentError("a frame engine needs a device");
  if (options.clock == nullptr) return absl::InvalidArgumentError("a frame engine needs a clock");
  HF_RETURN_IF_ERROR(CheckLimits(options.stash_limit, options.prefetch_limit));
  if (options.chaos.longest_delay < absl::ZeroDuration() ||
      options.chaos.longest_delay == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("chaos longest_delay is ", absl::FormatDuration(options.chaos.longest_delay),
                     "; it must be finite and 0 or more"));
  }
  for (const EngineArena& arena : arenas) {
    if (arena.tier == Tier::kKeep || arena.memory == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "arena of lease '", arena.lease_id.substr(0, 64), "' ",
          arena.memory == nullptr ? "has no memory" : "has tier keep, which takes no copies"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string Describe(const StorageKey& key) {
  return absl::StrCat("storage ", key.ordinal, " of block ", key.block, ", micro-batch ",
                      key.micro_batch);
}

absl::StatusOr<std::unique_ptr<FrameEngine>> FrameEngine::Create(Device* device,
                                                                 std::vector<EngineArena> arenas,
                                                                 FrameEngineOptions options) {
  HF_RETURN_IF_ERROR(CheckOptions(device, arenas, options));
  std::unique_ptr<Checksums> checksums;
  if (options.verify) {
    HF_ASSIGN_OR_RETURN(checksums, Checksums::Create(device));
  }
  auto engine = std::make_unique<FrameEngineImpl>(device, options, std::move(checksums));
  for (EngineArena& arena : arenas) HF_RETURN_IF_ERROR(engine->AddArena(std::move(arena)));
  return std::unique_ptr<FrameEngine>(std::move(engine));
}

absl::Status FrameEngineImpl::AddArena(EngineArena arena) {
  MutexLock lock(&mutex_);
  const int tier = static_cast<int>(arena.tier);
  OwnLanes own;
  for (const Direction direction : {Direction::kOut, Direction::kIn}) {
    std::unique_ptr<Lane>& own_lane = own.lanes[static_cast<int>(direction)];
    HF_ASSIGN_OR_RETURN(own_lane,
                        Lane::CreateFor(arena.memory.get(), direction, arena.tier, options_.chaos));
    std::unique_ptr<Lane>& lane = lanes_[static_cast<int>(direction)][tier];
    if (own_lane != nullptr || lane != nullptr) continue;
    HF_ASSIGN_OR_RETURN(lane, Lane::Create(device_, direction, arena.tier, options_.chaos));
  }
  own_lanes_.push_back(std::move(own));
  arenas_.push_back(std::make_unique<ArenaSlots>(std::move(arena)));
  return absl::OkStatus();
}

Lane* FrameEngineImpl::LaneOf(Direction direction, size_t arena) {
  Lane* const own = own_lanes_[arena].lanes[static_cast<int>(direction)].get();
  if (own != nullptr) return own;
  const int tier = static_cast<int>(arenas_[arena]->arena().tier);
  return lanes_[static_cast<int>(direction)][tier].get();
}

absl::StatusOr<Placement> FrameEngineImpl::Put(const StorageKey& key, const void* source,
                                               Bytes bytes, Tier tier, const std::string& gpu,
                                               Bytes preferred_offset, void* compute_stream) {
  if (bytes <= 0 || source == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot put ", Describe(key), ": ",
        source == nullptr ? "its source is null" : absl::StrCat("it has ", bytes, " bytes")));
  }
  Placement placement;
  if (tier == Tier::kKeep) {
    MutexLock lock(&mutex_);
    ++counters_.puts[static_cast<int>(Tier::kKeep)];
    return placement;
  }
  Storage storage;
  storage.key = key;
  storage.bytes = bytes;
  // A small storage gets its event with its company.
  std::shared_ptr<const Event> produced;
  if (checksums_ != nullptr || bytes > options_.largest_packed) {
    HF_ASSIGN_OR_RETURN(produced, device_->RecordCompute(compute_stream));
  }
  if (checksums_ != nullptr) {
    HF_ASSIGN_OR_RETURN(storage.checksum, checksums_->Of(source, bytes, *produced));
  }
  Bytes limit = 0;
  {
    MutexLock lock(&mutex_);
    HF_RETURN_IF_ERROR(NoteComputeStream(compute_stream));
    Slot slot;
    placement = Place(tier, gpu, bytes, preferred_offset, &slot);
    ++counters_.puts[static_cast<int>(placement.placed)];
    if (placement.placed == Tier::kKeep) return placement;
    storage.tier = placement.placed;
    storage.arena = slot.arena;
    storage.offset = slot.offset;
    placement.handle = next_handle_++;
    HF_RETURN_IF_ERROR(
        SendOut(placement.handle, source, slot, produced, compute_stream, std::move(storage)));
    limit = stash_limit_;
  }
  HF_RETURN_IF_ERROR(WaitForStash(limit, /*spare_newest=*/true, compute_stream));
  return placement;
}

bool FrameEngineImpl::FindSlot(Tier tier, const std::string& gpu, Bytes bytes, Bytes preferred,
                               Slot* slot, const char** reason) {
  *reason = kNoLease;
  for (size_t i = 0; i < arenas_.size(); ++i) {
    ArenaSlots& arena = *arenas_[i];
    if (arena.arena().tier != tier) continue;
    if (tier == Tier::kPeer && !gpu.empty() && arena.arena().gpu != gpu) continue;
    // Asked first: a full arena is no error, and its sentence would be written for nobody.
    if (bytes <= arena.largest_free()) {
      absl::StatusOr<Bytes> offset = arena.Allocate(bytes, preferred, &slot->before_write);
      if (offset.ok()) {
        slot->arena = i;
        slot->offset = *offset;
        return true;
      }
    }
    if (bytes <= arena.capacity() - arena.used()) {
      *reason = kLeaseFragmented;
    } else if (*reason == kNoLease) {
      *reason = kLeaseFull;
    }
  }
  return false;
}

Placement FrameEngineImpl::Place(Tier tier, const std::string& gpu, Bytes bytes, Bytes preferred,
                                 Slot* slot) {
  Placement placement;
  const char* reason = "";
  if (FindSlot(tier, gpu, bytes, preferred, slot, &reason)) {
    placement.placed = tier;
    return placement;
  }
  placement.overflow_reason = reason;
  const char* host_reason = "";
  if (tier != Tier::kHost &&
      FindSlot(Tier::kHost, /*gpu=*/"", bytes, /*preferred=*/-1, slot, &host_reason)) {
    ++counters_.overflow_to_host;
    placement.placed = Tier::kHost;
    return placement;
  }
  ++counters_.overflow_to_keep;
  placement.placed = Tier::kKeep;
  return placement;
}

absl::Status FrameEngineImpl::SendOut(StorageHandle handle, const void* source, const Slot& slot,
                                      const std::shared_ptr<const Event>& produced,
                                      void* compute_stream, Storage storage) {
  const Bytes bytes = storage.bytes;
  if (HasCompany(Direction::kOut, slot.arena, bytes)) {
    JoinOut(handle, source, bytes, slot, compute_stream);
  } else {
    StartBatch(Direction::kOut);
    HF_RETURN_IF_ERROR(CopyOut(source, bytes, slot, produced, compute_stream, &storage.copied_out));
    const bool skips_event = LaneOf(Direction::kOut, slot.arena)->skips_its_event();
    stash_.Add(handle, bytes, skips_event ? nullptr : storage.copied_out);
  }
  counters_.bytes_out[static_cast<int>(storage.tier)] += bytes;
  handle_of_key_[storage.key] = handle;
  order_.Put(storage.key, storage.bytes);
  storages_.emplace(handle, std::move(storage));
  ++puts_in_step_;
  if (batch(Direction::kOut)->IsFull(OpenBatch::RoomUnder(stash_limit_))) {
    StartBatch(Direction::kOut);
  }
  return absl::OkStatus();
}

absl::Status FrameEngineImpl::CopyOut(const void* source, Bytes bytes, const Slot& slot,
                                      const std::shared_ptr<const Event>& produced,
                                      void* compute_stream,
                                      std::shared_ptr<const Event>* copied_out) {
  ArenaSlots& arena = *arenas_[slot.arena];
  Lane* const lane = LaneOf(Direction::kOut, slot.arena);
  absl::Status status =
      produced != nullptr ? lane->WaitFor(produced) : WaitForProgram(lane, compute_stream);
  for (const auto& event : slot.before_write) {
    if (status.ok()) status = lane->WaitFor(event);
  }
  if (status.ok()) status = lane->Copy(arena.At(slot.offset), source, bytes, copied_out);
  if (!status.ok()) {
    lane->Drain();
    arena.Free(slot.offset, bytes, /*last_reload=*/nullptr);
  }
  return status;
}

absl::Status FrameEngineImpl::WaitForStash(Bytes limit, bool spare_newest, void* compute_stream) {
  while (true) {
    Stash::Entry oldest;
    std::vector<void*> streams;
    {
      MutexLock lock(&mutex_);
      if (!stash_.OldestUnwaited(limit, spare_newest, &oldest)) return absl::OkStatus();
      if (batch(Direction::kOut)->Holds(oldest.handle)) {
        StartBatch(Direction::kOut);                          // Before anybody waits for it.
        stash_.OldestUnwaited(limit, spare_newest, &oldest);  // The same one, with its event.
      }
      HF_RETURN_IF_ERROR(NoteComputeStream(compute_stream));
      streams = compute_streams_;
    }
    for (void* const stream : streams) {
      if (oldest.copied_out == nullptr) break;
      HF_RETURN_IF_ERROR(WaitExposed(*oldest.copied_out, stream));
    }
    MutexLock lock(&mutex_);
    stash_.MarkWaited(oldest.handle);
  }
}

absl::Status FrameEngineImpl::NoteComputeStream(void* compute_stream) {
  for (void* const known : compute_streams_) {
    if (known == compute_stream) return absl::OkStatus();
  }
  if (compute_streams_.size() == kMostComputeStreams) {
    return absl::ResourceExhaustedError(absl::StrCat("the program has computed on more than ",
                                                     kMostComputeStreams,
                                                     " streams in one step; use fewer of them"));
  }
  compute_streams_.push_back(compute_stream);
  return absl::OkStatus();
}

absl::Status FrameEngineImpl::WaitExposed(const Event& event, void* compute_stream) {
  if (event.Done()) return absl::OkStatus();
  if (!device_->compute_wait_blocks()) return device_->ComputeWait(compute_stream, event);
  const absl::Time started = options_.clock->Now();
  absl::Status status = device_->ComputeWait(compute_stream, event);
  MutexLock lock(&mutex_);
  counters_.exposed_wait += options_.clock->Now() - started;
  return status;
}

std::vector<StorageHandle> FrameEngineImpl::TakeReleasable(Bytes limit, void* compute_stream) {
  if (limit >= 0) {
    // A device that cannot wait any more lets nothing go: what was waited for before is still true.
    WaitForStash(limit, /*spare_newest=*/false, compute_stream).IgnoreError();
  }
  MutexLock lock(&mutex_);
  return stash_.TakeWaited();
}

void FrameEngineImpl::Drop(StorageHandle handle) {
  std::shared_ptr<const Event> reload_under_way;
  {
    MutexLock lock(&mutex_);
    const auto found = storages_.find(handle);
    if (found == storages_.end()) return;
    Storage& storage = found->second;
    StartBatchOf(handle);
    ArenaSlots& arena = *arenas_[storage.arena];
    if (storage.state == StorageState::kReloading) reload_under_way = storage.last_reload;
    // The lane is in order, so what is put into the slot later is written behind the poison.
    Lane* const lane = LaneOf(Direction::kOut, storage.arena);
    if (options_.chaos.enabled && lane->WaitFor(storage.last_reload).ok()) {
      lane->Poison(arena.At(storage.offset), storage.bytes).IgnoreError();
    }
    arena.Free(storage.offset, storage.bytes, storage.last_reload);
    NoLongerAhead(&storage);
    if (storage.destination != nullptr) counters_.reload_bytes -= storage.bytes;
    const auto of_key = handle_of_key_.find(storage.key);
    if (of_key != handle_of_key_.end() && of_key->second == handle) handle_of_key_.erase(of_key);
    storages_.erase(found);
  }
  // Nobody waited for this reload (a step that failed halfway): the caller frees the destination
  // when this returns, so the lane must have finished writing to it.
  if (reload_under_way != nullptr) reload_under_way->Synchronize();
}

absl::Status FrameEngineImpl::SetLimits(Bytes stash_limit, Bytes prefetch_limit) {
  HF_RETURN_IF_ERROR(CheckLimits(stash_limit, prefetch_limit));
  MutexLock lock(&mutex_);
  stash_limit_ = stash_limit;
  prefetch_limit_ = prefetch_limit;
  return absl::OkStatus();
}

absl::Status FrameEngineImpl::Quiesce() {
  MutexLock lock(&mutex_);
  if (!storages_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "not a quiescent point: ", storages_.size(), " storages are still live, the first is ",
        Describe(storages_.begin()->second.key), "; run backward, or drop them"));
  }
  order_.FinishStep(puts_in_step_);
  puts_in_step_ = 0;
  compute_streams_.clear();
  return absl::OkStatus();
}

EngineStats FrameEngineImpl::stats() const {
  MutexLock lock(&mutex_);
  EngineStats stats = counters_;
  if (!device_->compute_wait_blocks()) {
    stats.exposed_wait = device_->measured_exposed_wait() - exposed_before_;
  }
  stats.stash_bytes = stash_.held_bytes();
  stats.live_storages = static_cast<int64_t>(storages_.size());
  for (const auto& arena : arenas_) {
    stats.arena_used[static_cast<int>(arena->arena().tier)] += arena->used();
    stats.arena_capacity[static_cast<int>(arena->arena().tier)] += arena->capacity();
  }
  for (int direction = 0; direction < kDirectionCount; ++direction) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      const auto& lane = lanes_[direction][tier];
      if (lane != nullptr) stats.copy_busy[direction][tier] = lane->copy_busy();
    }
    for (size_t i = 0; i < arenas_.size(); ++i) {
      const auto& lane = own_lanes_[i].lanes[direction];
      if (lane == nullptr) continue;
      stats.copy_busy[direction][static_cast<int>(arenas_[i]->arena().tier)] += lane->copy_busy();
    }
  }
  return stats;
}

Bytes FrameEngineImpl::SizeOf(StorageHandle handle) const {
  MutexLock lock(&mutex_);
  const auto found = storages_.find(handle);
  return found == storages_.end() ? 0 : found->second.bytes;
}

}  // namespace hyperframes
