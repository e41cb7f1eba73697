// The words that every room shares: where a storage waits and what a block does with its frame.
#ifndef HYPERFRAMES_COMMON_FRAME_H_
#define HYPERFRAMES_COMMON_FRAME_H_

#include <cstdint>

namespace hyperframes {

// Where a saved storage waits between forward and backward.
enum class Tier : int8_t {
  kKeep = 0,  // On its own GPU, untouched.
  kPeer = 1,  // In an arena on another GPU.
  kHost = 2,  // In an arena in pinned host memory.
};
constexpr int kTierCount = 3;

// What a block does with the storages that its forward leaves behind.
enum class Policy : int8_t {
  kSave = 0,       // All of them wait in their tiers.
  kRecompute = 1,  // Only the block's inputs wait; the rest is made again in backward.
  kSelective = 2,  // Outputs of expensive operators wait, cheap operators run again.
};

// Which way a copy goes, seen from the GPU that computes.
enum class Direction : int8_t {
  kOut = 0,  // Copy-out in forward.
  kIn = 1,   // Reload in backward.
};
constexpr int kDirectionCount = 2;

// Lower-case name for tables, labels and logs: "keep", "peer", "host".
constexpr const char* TierName(Tier tier) {
  return tier == Tier::kKeep ? "keep" : tier == Tier::kPeer ? "peer" : "host";
}
constexpr const char* PolicyName(Policy policy) {
  return policy == Policy::kSave        ? "save"
         : policy == Policy::kRecompute ? "recompute"
                                        : "selective";
}
constexpr const char* DirectionName(Direction direction) {
  return direction == Direction::kOut ? "out" : "in";
}

// Slots and reload buffers keep this alignment: another alignment lets cuBLAS choose another
// kernel, and with it other bits.
constexpr int64_t kSlotAlignment = 512;

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_FRAME_H_
