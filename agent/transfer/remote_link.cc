#include "agent/transfer/remote_link.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/random_id.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

TransferPage* FreshPage(Memory* memory) {
  auto* const page = new (memory->data()) TransferPage();
  page->magic = kTransferMagic;
  page->version = kTransferVersion;
  page->generation = static_cast<uint32_t>(RandomIncarnation());
  return page;
}

Bytes HalfOf(const Memory& staging) {
  return staging.bytes() / 2 / kSlotAlignment * kSlotAlignment;
}

}  // namespace

RemoteLink::Queue::Queue(Direction direction, RemoteLink* link, StagingRing staging)
    : direction_(direction),
      link_(link),
      producer_(direction == Direction::kOut ? &link->page_->puts : &link->page_->fetches,
                link->page_->generation),
      staging_(std::move(staging)) {}

RemoteLink::RemoteLink(std::string name, Bytes lease_bytes, std::unique_ptr<Memory> page,
                       std::unique_ptr<Memory> staging)
    : name_(std::move(name)),
      lease_bytes_(lease_bytes),
      page_memory_(std::move(page)),
      staging_(std::move(staging)),
      page_(FreshPage(page_memory_.get())),
      puts_(Direction::kOut, this, StagingRing(0, HalfOf(*staging_))),
      fetches_(Direction::kIn, this, StagingRing(HalfOf(*staging_), HalfOf(*staging_))) {}

absl::Status RemoteLink::Queue::Add(
    TransferCommand command,
    const std::function<absl::Status(const TransferCommand&, uint32_t)>& stage) {
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    if (link_->lost()) return link_->status();
    command.sequence = NextNumber(last());
    uint32_t staging_after = 0;
    if (command.op != static_cast<uint16_t>(TransferOp::kFill)) {
      const StagingRing::Place place = staging_.Add(command.sequence, command.bytes);
      command.staging = place.offset;
      staging_after = place.after;
    }
    if (direction_ == Direction::kIn) command.staging_after = staging_after;
    last_.store(command.sequence, std::memory_order_release);
    // A reload is asked for before a stream waits for it: a stream that waits for this thread could
    // stand still with it, where another thread makes the driver wait for every stream. A copy-out
    // is told of when it is on its way. Beyond that only the numbers order them.
    const auto push = [&] {
      mutex_.AssertHeld();
      return producer_.Push(command, [this] { return link_->lost(); });
    };
    if (direction_ == Direction::kIn) status = push();
    if (status.ok()) status = stage(command, staging_after);
    if (status.ok() && direction_ == Direction::kOut) status = push();
  }
  if (status.ok()) return status;
  // A number that is never carried out would be waited for in vain.
  link_->Lose(std::string(status.message()));
  return link_->status();
}

absl::Status RemoteLink::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

void RemoteLink::Lose(const std::string& why) {
  {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    status_ =
        absl::UnavailableError(absl::StrCat(name_, " is lost, and with it the frames there: ", why,
                                            "; restart the job from its last checkpoint"));
    for (const Direction direction : {Direction::kOut, Direction::kIn}) {
      arrived_at_loss_[static_cast<int>(direction)] =
          arrived(direction)->load(std::memory_order_acquire);
    }
    lost_.store(true, std::memory_order_release);
  }
  ReleaseWaiters();
}

// Takes no lock of the queues: whoever holds one may be waiting for its stream, and that for us. A
// piece that is being queued meanwhile is released by the next look.
void RemoteLink::ReleaseWaiters() {
  const uint32_t puts = puts_.last();
  const uint32_t fetches = fetches_.last();
  PostWord(&page_->put_sent, puts);
  PostWord(&page_->put_stored, puts);
  PostWord(&page_->fetch_done, fetches);
}

absl::Status RemoteLink::AwaitArrival(Direction direction, uint32_t sequence) const {
  // hftransfer posts the word itself, whatever the backend.
  AwaitWord(*arrived(direction), sequence, [this] { return lost(); });
  MutexLock lock(&mutex_);
  if (status_.ok() || Reached(arrived_at_loss_[static_cast<int>(direction)], sequence)) {
    return absl::OkStatus();
  }
  return status_;
}

void RemoteLink::Watch(absl::Duration since_last, absl::Duration deadline) {
  if (lost()) {
    // Once more: a piece was queued meanwhile, or an hftransfer that was only stopped has gone on
    // and set a word back.
    ReleaseWaiters();
    return;
  }
  const uint32_t beat = page_->beat.load(std::memory_order_acquire);
  if (page_->failed.load(std::memory_order_acquire) != 0) {
    // The reason was sent before; it is read between two looks.
    if (failed_was_seen_) Lose("hftransfer of this node has lost it");
    failed_was_seen_ = true;
  } else if (beat != last_beat_) {
    last_beat_ = beat;
    beat_stood_still_ = absl::ZeroDuration();
  } else if ((beat_stood_still_ += since_last) >= deadline) {
    Lose(absl::StrCat("hftransfer of this node has shown no sign of life for ",
                      absl::FormatDuration(beat_stood_still_)));
  }
}

}  // namespace hyperframes
