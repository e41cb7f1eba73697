// Places pieces in a range of staging memory, in a circle. It never waits: it says which earlier
// piece must be over before the place may be written, and the streams wait for that.
#ifndef HYPERFRAMES_AGENT_TRANSFER_STAGING_RING_H_
#define HYPERFRAMES_AGENT_TRANSFER_STAGING_RING_H_

#include <cstdint>
#include <deque>

#include "common/units.h"

namespace hyperframes {

// Not thread-safe.
class StagingRing {
 public:
  struct Place {
    Bytes offset = 0;
    uint32_t after = 0;  // The newest piece that has been in this place; 0: none.
  };

  // The range [begin, begin + bytes); both are multiples of kSlotAlignment.
  StagingRing(Bytes begin, Bytes bytes) : begin_(begin), bytes_(bytes) {}

  // So that four pieces are under way at once: one is copied while others travel.
  Bytes largest_piece() const;

  // A place for piece `sequence` of `bytes`, from 1 to largest_piece(). Sequences ascend.
  Place Add(uint32_t sequence, Bytes bytes);

 private:
  struct Piece {
    Bytes begin;
    Bytes end;
    uint32_t sequence;
  };

  const Bytes begin_;
  const Bytes bytes_;
  Bytes next_ = 0;
  std::deque<Piece> pieces_;  // Whose place nobody has taken since, oldest first.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_STAGING_RING_H_
