// A lane between this process's GPU and a lease on another node. The engine queues copies on it as
// on any other lane, with addresses of the lease's range; a copy-out goes into staging memory on
// the device's own stream, and from there hftransfer takes it to the other node; a reload comes the
// other way.
//
// What its events mean: a copy-out's is done when the source may be written again, a reload's when
// the destination has the bytes. Waiting for an event of the other direction orders the far side's
// slot, not this device: a reload behind its own copy-out, a copy-out behind the reloads from a
// slot that it reuses.
#ifndef HYPERFRAMES_AGENT_TRANSFER_REMOTE_STREAM_H_
#define HYPERFRAMES_AGENT_TRANSFER_REMOTE_STREAM_H_

#include <memory>

#include "absl/status/status.h"
#include "agent/device/device.h"
#include "agent/transfer/remote_link.h"
#include "common/frame.h"
#include "common/mutex.h"

namespace hyperframes {

// Thread-safe. Destruction waits for what was queued: as long as the link's deadlines, at most.
class RemoteStream final : public Stream {
 public:
  // `local` is a lane of the device in `direction`; `range` is where the lease's addresses begin.
  RemoteStream(std::shared_ptr<RemoteLink> link, Direction direction, std::unique_ptr<Stream> local,
               const char* range)
      : link_(std::move(link)), direction_(direction), range_(range), local_(std::move(local)) {}

  // InvalidArgument: the lease's end is outside its range. Unavailable: the lease is lost.
  absl::Status Copy(void* to, const void* from, Bytes bytes) override HF_EXCLUDES(mutex_);
  // On the copy-out lane only.
  absl::Status Fill(void* to, uint8_t value, Bytes bytes) override HF_EXCLUDES(mutex_);
  absl::Status WaitFor(std::shared_ptr<const Event> event) override HF_EXCLUDES(mutex_);
  std::shared_ptr<const Event> Record() override HF_EXCLUDES(mutex_);
  absl::Status Delay(absl::Duration delay) override { return local_->Delay(delay); }
  absl::Duration copy_busy() const override { return local_->copy_busy(); }

 private:
  absl::StatusOr<Bytes> SlotOf(const void* address, Bytes bytes) const;
  absl::Status CopyOutPiece(Bytes slot, const char* from, Bytes bytes) HF_REQUIRES(mutex_);
  absl::Status ReloadPiece(char* to, Bytes slot, Bytes bytes) HF_REQUIRES(mutex_);

  const std::shared_ptr<RemoteLink> link_;
  const Direction direction_;
  const char* const range_;
  Mutex mutex_;
  const std::unique_ptr<Stream> local_;
  uint32_t after_ HF_GUARDED_BY(mutex_) = 0;  // What the next piece must come after.
  // A failed piece leaves its copy undone: what is recorded behind it must not look like success.
  uint32_t last_ HF_GUARDED_BY(mutex_) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_REMOTE_STREAM_H_
