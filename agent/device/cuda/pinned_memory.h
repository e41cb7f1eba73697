// Host memory as a lender: a lease's memfd, mapped and pinned for copies of one GPU. Pinning takes
// a good part of a second per GiB, so it runs in the background while the lease is being opened,
// and never inside a step: the lease is usable once WaitUntilUsable has returned OK.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_PINNED_MEMORY_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_PINNED_MEMORY_H_

#include <atomic>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/device/cuda/cuda_context.h"
#include "agent/device/device.h"
#include "common/mutex.h"
#include "common/units.h"

namespace hyperframes {

// Exactly the lease's bytes. Thread-safe.
class PinnedMemory final : public Memory {
 public:
  // How much one thread faults in at a time: pinning can be given up between two pieces.
  static constexpr Bytes kPiece = 64 * kMiB;

  // Takes ownership of `descriptor` (a memfd of exactly `bytes`), also when it fails; codes as
  // HostMemory::Map. Pages that do not exist yet are made on `numa_node` where that has room; -1:
  // anywhere. Returns at once; pinning goes on in the background.
  static absl::StatusOr<std::unique_ptr<Memory>> Map(std::shared_ptr<const CudaContext> context,
                                                     int descriptor, Bytes bytes, int numa_node);
  ~PinnedMemory() override;  // Gives up pinning where it is still under way.

  char* data() const override { return mapped_->data(); }
  Bytes bytes() const override { return mapped_->bytes(); }
  int descriptor() const override { return mapped_->descriptor(); }
  // ResourceExhausted: the machine, the container or the memlock limit does not allow that much;
  // the message says which, and what to change.
  absl::Status WaitUntilUsable() const override HF_EXCLUDES(mutex_);
  double usable_share() const override;

 private:
  enum class State { kPinning, kPinned, kFailed };
  // The legal moves: pinning ends one way or the other, once.
  static constexpr bool MayMove(State from, State to) {
    return from == State::kPinning && to != State::kPinning;
  }

  PinnedMemory(std::shared_ptr<const CudaContext> context, std::unique_ptr<Memory> mapped,
               int numa_node);
  void Pin() HF_EXCLUDES(mutex_);
  absl::Status CheckRoom() const;
  absl::Status FaultIn();
  void FaultInPieces(std::atomic<Bytes>* next, bool says_progress);
  absl::Status Register();
  void Settle(State state, absl::Status result) HF_EXCLUDES(mutex_);

  const std::shared_ptr<const CudaContext> context_;
  const std::unique_ptr<Memory> mapped_;
  const int numa_node_;
  std::atomic<bool> stop_{false};
  std::atomic<Bytes> faulted_in_{0};
  mutable Mutex mutex_;
  mutable CondVar changed_;
  State state_ HF_GUARDED_BY(mutex_) = State::kPinning;
  absl::Status result_ HF_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: starts when everything above is ready.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_PINNED_MEMORY_H_
