// The learned order of consumption: what the last complete step consumed, key by key, and how far
// this step has come in it. It knows keys, not storages.
#ifndef HYPERFRAMES_AGENT_ENGINE_PREFETCH_ORDER_H_
#define HYPERFRAMES_AGENT_ENGINE_PREFETCH_ORDER_H_

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "agent/engine/frame_engine.h"

namespace hyperframes {

inline bool operator==(const StorageKey& a, const StorageKey& b) {
  return a.micro_batch == b.micro_batch && a.block == b.block && a.ordinal == b.ordinal;
}

template <typename H>
H AbslHashValue(H state, const StorageKey& key) {
  return H::combine(std::move(state), key.micro_batch, key.block, key.ordinal);
}

// Not thread-safe: the engine's lock guards it.
class PrefetchOrder {
 public:
  // A step with more storages than this is learned up to here; the rest is reloaded on demand.
  static constexpr size_t kLongestOrder = size_t{1} << 20;

  // A storage was put.
  void Put(const StorageKey& key, Bytes bytes);

  // A storage was consumed for the first time in this step. Moves the position behind `key` when
  // the learned order still has it ahead; a key that is not in it, or behind, changes nothing.
  void Consumed(const StorageKey& key);

  // A quiescent point after a step that put `puts` storages. What was consumed becomes the learned
  // order, unless less than half of the step was consumed: an evaluation, or a step that failed
  // halfway, says nothing about the next one.
  void FinishStep(size_t puts);

  bool has_learned() const { return !learned_.empty(); }
  // Bytes of a key that the learned step put only after it had begun to consume, as a block does
  // that runs again in backward; 0: it had put it before.
  Bytes BytesPutLate(const StorageKey& key) const;
  // Keys still ahead, most urgent first.
  const StorageKey* begin() const { return learned_.data() + position_; }
  const StorageKey* end() const { return learned_.data() + learned_.size(); }

 private:
  std::vector<StorageKey> learned_;
  absl::flat_hash_map<StorageKey, size_t> index_;  // Key -> place in learned_.
  size_t position_ = 0;
  absl::flat_hash_map<StorageKey, Bytes> late_;
  std::vector<StorageKey> current_;
  absl::flat_hash_map<StorageKey, Bytes> current_late_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_PREFETCH_ORDER_H_
