// The training process's end of one lease on another node: the page and staging memory that it
// shares with hftransfer, the commands that it queues there, and whether the lease is still alive.
#ifndef HYPERFRAMES_AGENT_TRANSFER_REMOTE_LINK_H_
#define HYPERFRAMES_AGENT_TRANSFER_REMOTE_LINK_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/device.h"
#include "agent/transfer/command_ring.h"
#include "agent/transfer/staging_ring.h"
#include "agent/transfer/transfer_page.h"
#include "common/frame.h"
#include "common/mutex.h"

namespace hyperframes {

// Shared by the memory, its streams and their events. Thread-safe.
class RemoteLink {
 public:
  // Writes a fresh page into `page`, which is kTransferPageBytes long. Both memories are usable by
  // this process's device. `name` is for messages: "lease X on node B".
  RemoteLink(std::string name, Bytes lease_bytes, std::unique_ptr<Memory> page,
             std::unique_ptr<Memory> staging);

  // One lane's way in.
  class Queue {
   public:
    explicit Queue(Direction direction, RemoteLink* link, StagingRing staging);

    Bytes largest_piece() const { return staging_.largest_piece(); }
    // Queues one piece: `stage` queues on the caller's stream what belongs between the place in
    // staging memory and the piece's number. The status of the link once it is lost.
    absl::Status Add(
        TransferCommand command,
        const std::function<absl::Status(const TransferCommand&, uint32_t staging_after)>& stage)
        HF_EXCLUDES(mutex_);
    // The number of the last piece that was begun; 0: none.
    uint32_t last() const { return last_.load(std::memory_order_acquire); }

   private:
    friend class RemoteLink;
    const Direction direction_;
    RemoteLink* const link_;
    Mutex mutex_;
    CommandProducer producer_ HF_GUARDED_BY(mutex_);
    StagingRing staging_;            // Add alone changes it, under mutex_.
    std::atomic<uint32_t> last_{0};  // Written under mutex_.
  };

  Queue* queue(Direction direction) { return direction == Direction::kOut ? &puts_ : &fetches_; }
  TransferPage* page() const { return page_; }
  // The word that hftransfer advances as the direction's pieces arrive.
  SharedWord* arrived(Direction direction) const {
    return direction == Direction::kOut ? &page_->put_stored : &page_->fetch_done;
  }
  char* staging() const { return staging_->data(); }
  const Memory& page_memory() const { return *page_memory_; }
  const Memory& staging_memory() const { return *staging_; }
  Bytes lease_bytes() const { return lease_bytes_; }
  const std::string& name() const { return name_; }

  // OK until the lease is lost; then Unavailable, for ever.
  absl::Status status() const HF_EXCLUDES(mutex_);
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  // Declares it lost: every stream that waits for a word goes on, with bytes that mean nothing, and
  // whoever asks for status learns why. The first reason stands.
  void Lose(const std::string& why) HF_EXCLUDES(mutex_);

  // Blocks until piece `sequence` is on the other node, or a reload's in staging here, or the lease
  // is lost: then OK only for what had arrived before.
  absl::Status AwaitArrival(Direction direction, uint32_t sequence) const HF_EXCLUDES(mutex_);

  // Looks after the link; called every `since_last`, more or less. It is lost when hftransfer says
  // so or when its beat has stood still for `deadline`, counted in looks, so that a time for which
  // this process itself was stopped does not count.
  void Watch(absl::Duration since_last, absl::Duration deadline) HF_EXCLUDES(mutex_);

 private:
  void ReleaseWaiters();

  const std::string name_;
  const Bytes lease_bytes_;
  const std::unique_ptr<Memory> page_memory_;
  const std::unique_ptr<Memory> staging_;
  TransferPage* const page_;
  Queue puts_;
  Queue fetches_;
  std::atomic<bool> lost_{false};
  mutable Mutex mutex_;
  absl::Status status_ HF_GUARDED_BY(mutex_);
  uint32_t arrived_at_loss_[kDirectionCount] HF_GUARDED_BY(mutex_) = {};
  // Of the watching thread.
  uint32_t last_beat_ = 0;
  absl::Duration beat_stood_still_;
  bool failed_was_seen_ = false;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_REMOTE_LINK_H_
