// How bytes go between this process and one peer, once the two have agreed on what goes where over
// their control connection. One transport for one direction of one lease: its two ends call Send
// and Receive in the same order with the same sizes.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TRANSPORT_H_
#define HYPERFRAMES_AGENT_TRANSFER_TRANSPORT_H_

#include "absl/status/status.h"
#include "common/units.h"

namespace hyperframes {

// Send and Receive are called by one thread at a time; Abort by any.
class Transport {
 public:
  virtual ~Transport() = default;

  // Blocks until `from` may be written again. `from` and `to` are memory that this end's device can
  // read and write. Unavailable: the peer is gone, or nothing moved for the deadline that the
  // transport was made with; nothing may be called after that but Abort.
  virtual absl::Status Send(const char* from, Bytes bytes) = 0;
  // Blocks until all bytes are at `to`, for every reader on this machine.
  virtual absl::Status Receive(char* to, Bytes bytes) = 0;

  // Ends calls under way and makes later ones fail. Returns at once or within the deadline.
  virtual void Abort() = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TRANSPORT_H_
