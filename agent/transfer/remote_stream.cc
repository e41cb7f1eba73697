#include "agent/transfer/remote_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

class RemoteEvent final : public Event {
 public:
  RemoteEvent(std::shared_ptr<RemoteLink> link, Direction direction, uint32_t sequence,
              std::shared_ptr<const Event> local)
      : link_(std::move(link)),
        direction_(direction),
        sequence_(sequence),
        local_(std::move(local)) {}

  bool Done() const override { return local_->Done(); }
  void Synchronize() const override { local_->Synchronize(); }
  const Event& OnDevice() const override { return local_->OnDevice(); }
  absl::Status Arrived() const override { return link_->AwaitArrival(direction_, sequence_); }

  const RemoteLink* link() const { return link_.get(); }
  Direction direction() const { return direction_; }
  uint32_t sequence() const { return sequence_; }

 private:
  const std::shared_ptr<RemoteLink> link_;
  const Direction direction_;
  const uint32_t sequence_;
  const std::shared_ptr<const Event> local_;
};

}  // namespace

absl::StatusOr<Bytes> RemoteStream::SlotOf(const void* address, Bytes bytes) const {
  const Bytes slot = static_cast<const char*>(address) - range_;
  if (bytes >= 0 && slot >= 0 && bytes <= link_->lease_bytes() &&
      slot <= link_->lease_bytes() - bytes) {
    return slot;
  }
  return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes at ", slot, " lie outside ",
                                                 link_->name(), " of ", link_->lease_bytes(),
                                                 " bytes"));
}

absl::Status RemoteStream::Copy(void* to, const void* from, Bytes bytes) {
  const bool out = direction_ == Direction::kOut;
  HF_ASSIGN_OR_RETURN(const Bytes slot, SlotOf(out ? to : from, bytes));
  const Bytes most = link_->queue(direction_)->largest_piece();
  MutexLock lock(&mutex_);
  for (Bytes at = 0; at < bytes; at += most) {
    const Bytes piece = std::min(most, bytes - at);
    HF_RETURN_IF_ERROR(out ? CopyOutPiece(slot + at, static_cast<const char*>(from) + at, piece)
                           : ReloadPiece(static_cast<char*>(to) + at, slot + at, piece));
  }
  return absl::OkStatus();
}

absl::Status RemoteStream::CopyOutPiece(Bytes slot, const char* from, Bytes bytes) {
  TransferCommand command;
  command.op = static_cast<uint16_t>(TransferOp::kPut);
  command.after = std::exchange(after_, 0);
  command.slot = slot;
  command.bytes = bytes;
  TransferPage* const page = link_->page();
  return link_->queue(direction_)
      ->Add(command, [&](const TransferCommand& piece, uint32_t staging_after) -> absl::Status {
        mutex_.AssertHeld();
        last_ = piece.sequence;
        if (staging_after != 0) {
          HF_RETURN_IF_ERROR(local_->AwaitWord(&page->put_sent, staging_after));
        }
        HF_RETURN_IF_ERROR(local_->Copy(link_->staging() + piece.staging, from, bytes));
        return local_->PostWord(&page->put_ready, piece.sequence);
      });
}

absl::Status RemoteStream::ReloadPiece(char* to, Bytes slot, Bytes bytes) {
  TransferCommand command;
  command.op = static_cast<uint16_t>(TransferOp::kFetch);
  command.after = std::exchange(after_, 0);
  command.slot = slot;
  command.bytes = bytes;
  TransferPage* const page = link_->page();
  return link_->queue(direction_)
      ->Add(command, [&](const TransferCommand& piece, uint32_t /*staging_after*/) -> absl::Status {
        mutex_.AssertHeld();
        last_ = piece.sequence;
        HF_RETURN_IF_ERROR(local_->AwaitWord(&page->fetch_done, piece.sequence));
        HF_RETURN_IF_ERROR(local_->Copy(to, link_->staging() + piece.staging, bytes));
        return local_->PostWord(&page->fetch_taken, piece.sequence);
      });
}

absl::Status RemoteStream::Fill(void* to, uint8_t value, Bytes bytes) {
  if (direction_ != Direction::kOut) {
    return absl::InvalidArgumentError("slots of another node are filled on the copy-out lane");
  }
  HF_ASSIGN_OR_RETURN(const Bytes slot, SlotOf(to, bytes));
  if (bytes == 0) return absl::OkStatus();
  TransferCommand command;
  command.op = static_cast<uint16_t>(TransferOp::kFill);
  command.fill = value;
  command.slot = slot;
  command.bytes = bytes;
  MutexLock lock(&mutex_);
  command.after = std::exchange(after_, 0);
  return link_->queue(direction_)->Add(command, [&](const TransferCommand& piece, uint32_t) {
    mutex_.AssertHeld();
    last_ = piece.sequence;
    return absl::OkStatus();
  });
}

absl::Status RemoteStream::WaitFor(std::shared_ptr<const Event> event) {
  const auto* const remote = dynamic_cast<const RemoteEvent*>(event.get());
  if (remote == nullptr || remote->link() != link_.get()) return local_->WaitFor(std::move(event));
  if (remote->direction() == direction_) return absl::OkStatus();  // The lane is in order.
  MutexLock lock(&mutex_);
  const uint32_t sequence = remote->sequence();
  if (sequence != 0 && (after_ == 0 || Reached(sequence, after_))) after_ = sequence;
  return absl::OkStatus();
}

std::shared_ptr<const Event> RemoteStream::Record() {
  MutexLock lock(&mutex_);
  return std::make_shared<RemoteEvent>(link_, direction_, last_, local_->Record());
}

}  // namespace hyperframes
