#include "agent/transfer/staging_ring.h"

#include <algorithm>

#include "common/frame.h"

namespace hyperframes {
namespace {

constexpr Bytes kPiecesAtOnce = 4;
constexpr Bytes kMostPerPiece = 16 * kMiB;

}  // namespace

Bytes StagingRing::largest_piece() const {
  const Bytes share = bytes_ / kPiecesAtOnce / kSlotAlignment * kSlotAlignment;
  return std::min(share, kMostPerPiece);
}

StagingRing::Place StagingRing::Add(uint32_t sequence, Bytes bytes) {
  const Bytes whole = (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  Place place;
  const auto pop = [this, &place] {
    place.after = pieces_.front().sequence;
    pieces_.pop_front();
  };
  if (next_ + whole > bytes_) {
    // The circle begins anew. What lies between here and the end is of the round before, and older
    // than everything at the begin.
    while (!pieces_.empty() && pieces_.front().begin >= next_) pop();
    next_ = 0;
  }
  const Bytes end = next_ + whole;
  place.offset = begin_ + next_;
  while (!pieces_.empty() && pieces_.front().begin < end && next_ < pieces_.front().end) pop();
  pieces_.push_back({next_, end, sequence});
  next_ = end;
  return place;
}

}  // namespace hyperframes
