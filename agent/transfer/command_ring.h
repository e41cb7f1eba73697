// The two ends of a ring of commands in shared memory: one producer, one consumer, in different
// processes. Neither believes the other: what does not add up is DataLoss, and never an access out
// of bounds.
#ifndef HYPERFRAMES_AGENT_TRANSFER_COMMAND_RING_H_
#define HYPERFRAMES_AGENT_TRANSFER_COMMAND_RING_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/transfer/transfer_page.h"

namespace hyperframes {

// One thread at a time.
class CommandProducer {
 public:
  // `ring` outlives the producer.
  CommandProducer(RingPage* ring, uint32_t generation) : ring_(ring), generation_(generation) {}

  // Hands one command over; its generation is filled in. A full ring is waited for. Cancelled:
  // `ended` (not null, must not block) says that nobody will take it. DataLoss: the consumer's word
  // is impossible.
  absl::Status Push(TransferCommand command, const std::function<bool()>& ended);

 private:
  RingPage* const ring_;
  const uint32_t generation_;
  uint32_t pushed_ = 0;  // Ours, whatever the shared word says.
};

// One thread at a time.
class CommandConsumer {
 public:
  CommandConsumer(RingPage* ring, uint32_t generation) : ring_(ring), generation_(generation) {}

  // Takes the next command into *command; false when there is none. DataLoss: the producer's word
  // is impossible, or the command is of another generation or out of sequence.
  absl::StatusOr<bool> TryTake(TransferCommand* command);

  // The same, after waiting for one. False: `ended` says that none will come.
  absl::StatusOr<bool> Take(TransferCommand* command, const std::function<bool()>& ended);

 private:
  RingPage* const ring_;
  const uint32_t generation_;
  uint32_t taken_ = 0;
  uint32_t last_sequence_ = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_COMMAND_RING_H_
