#include "agent/engine/prefetch_order.h"

#include <utility>

namespace hyperframes {

void PrefetchOrder::Put(const StorageKey& key, Bytes bytes) {
  if (!current_.empty() && current_late_.size() < kLongestOrder) current_late_[key] = bytes;
}

Bytes PrefetchOrder::BytesPutLate(const StorageKey& key) const {
  const auto found = late_.find(key);
  return found == late_.end() ? 0 : found->second;
}

void PrefetchOrder::Consumed(const StorageKey& key) {
  if (current_.size() < kLongestOrder) current_.push_back(key);
  const auto place = index_.find(key);
  if (place != index_.end() && place->second >= position_) position_ = place->second + 1;
}

void PrefetchOrder::FinishStep(size_t puts) {
  if (!current_.empty() && current_.size() * 2 >= puts) {
    learned_ = std::move(current_);
    late_ = std::move(current_late_);
    index_.clear();
    index_.reserve(learned_.size());
    // The first place counts where a key came twice.
    for (size_t i = 0; i < learned_.size(); ++i) index_.emplace(learned_[i], i);
  }
  current_.clear();
  current_late_.clear();
  position_ = 0;
}

}  // namespace hyperframes
