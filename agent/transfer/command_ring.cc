#include "agent/transfer/command_ring.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(50);
static_assert((kRingCapacity & (kRingCapacity - 1)) == 0, "counts wrap at a power of two");

}  // namespace

absl::Status CommandProducer::Push(TransferCommand command, const std::function<bool()>& ended) {
  while (true) {
    const uint32_t taken = ring_->taken.load(std::memory_order_acquire);
    const uint32_t waiting = pushed_ - taken;
    if (waiting > kRingCapacity) {
      return absl::DataLossError(absl::StrCat("the ring of commands is damaged: ", pushed_,
                                              " were pushed and ", taken, " taken"));
    }
    if (ended()) return absl::CancelledError("nobody takes commands any more");
    if (waiting < kRingCapacity) break;
    AwaitChange(ring_->taken, taken, kLookAgain);
  }
  command.generation = generation_;
  ring_->commands[pushed_ % kRingCapacity] = command;
  PostWord(&ring_->pushed, ++pushed_);
  return absl::OkStatus();
}

absl::StatusOr<bool> CommandConsumer::TryTake(TransferCommand* command) {
  const uint32_t pushed = ring_->pushed.load(std::memory_order_acquire);
  if (pushed == taken_) return false;
  if (pushed - taken_ > kRingCapacity) {
    return absl::DataLossError(absl::StrCat("the ring of commands is damaged: ", pushed,
                                            " were pushed and ", taken_, " taken"));
  }
  // A copy: the producer may write to the page at any time, and what was checked must stay so.
  *command = ring_->commands[taken_ % kRingCapacity];
  if (command->generation != generation_ || command->sequence != NextNumber(last_sequence_)) {
    return absl::DataLossError(absl::StrCat(
        "command ", command->sequence, " of generation ", command->generation, " after command ",
        last_sequence_, " of generation ", generation_, ": another program writes to the ring"));
  }
  last_sequence_ = command->sequence;
  PostWord(&ring_->taken, ++taken_);
  return true;
}

absl::StatusOr<bool> CommandConsumer::Take(TransferCommand* command,
                                           const std::function<bool()>& ended) {
  while (true) {
    HF_ASSIGN_OR_RETURN(const bool taken, TryTake(command));
    if (taken) return true;
    if (ended()) return false;
    AwaitChange(ring_->pushed, taken_, kLookAgain);
  }
}

}  // namespace hyperframes
