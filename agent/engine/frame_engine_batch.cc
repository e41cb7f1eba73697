// Small storages in company: who joins, and how a batch starts.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/engine/frame_engine_impl.h"
#include "common/status_macros.h"

namespace hyperframes {

bool FrameEngineImpl::HasCompany(Direction direction, size_t arena, Bytes bytes) const {
  // A lane of the memory itself may lose one copy and not another, and has to say which.
  if (own_lanes_[arena].lanes[static_cast<int>(direction)] != nullptr) return false;
  const Bytes limit = direction == Direction::kOut ? stash_limit_ : prefetch_limit_;
  return OpenBatch::IsSmall(bytes, options_.largest_packed, limit);
}

void FrameEngineImpl::JoinOut(StorageHandle handle, const void* source, Bytes bytes,
                              const Slot& slot, void* compute_stream) {
  OpenBatch* const open = batch(Direction::kOut);
  if (!open->Takes(slot.arena, bytes, OpenBatch::RoomUnder(stash_limit_))) {
    StartBatch(Direction::kOut);
  }
  open->Add(handle, slot.arena, {arenas_[slot.arena]->At(slot.offset), source, bytes},
            compute_stream);
  for (const auto& event : slot.before_write) open->StartAfter(event);
  stash_.Add(handle, bytes, /*copied_out=*/nullptr, open->number());
}

absl::Status FrameEngineImpl::WaitForProgram(Lane* lane, void* compute_stream) {
  HF_ASSIGN_OR_RETURN(const std::shared_ptr<const Event> reached,
                      device_->RecordCompute(compute_stream));
  return lane->WaitFor(reached);
}

void FrameEngineImpl::StartBatch(Direction direction) {
  OpenBatch* const open = batch(direction);
  if (open->empty()) return;
  Lane* const lane = LaneOf(direction, open->arena());
  std::shared_ptr<const Event> done;
  absl::Status status;
  for (void* const stream : open->compute_streams()) {
    if (status.ok()) status = WaitForProgram(lane, stream);
  }
  for (const auto& event : open->start_after()) {
    if (status.ok()) status = lane->WaitFor(event);
  }
  if (status.ok()) status = lane->CopyAll(open->parts(), &done);
  if (!status.ok()) lane->Drain();
  for (const StorageHandle handle : open->handles()) {
    Storage& storage = storages_.at(handle);
    if (!status.ok()) {
      storage.failure =
          absl::Status(status.code(), absl::StrCat(Describe(storage.key), ": ", status.message()));
    }
    if (direction == Direction::kIn) {
      storage.last_reload = done;
      continue;
    }
    storage.copied_out = done;
    if (!lane->skips_its_event()) stash_.SetCopiedOut(handle, done);
  }
  open->Clear();
}

void FrameEngineImpl::StartBatchOf(StorageHandle handle) {
  for (const Direction direction : {Direction::kOut, Direction::kIn}) {
    if (batch(direction)->Holds(handle)) StartBatch(direction);
  }
}

}  // namespace hyperframes
