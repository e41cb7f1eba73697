#include "agent/engine/prefetch_order.h"

#include <utility>

namespace hyperframes {

void PrefetchOrder::Consumed(const StorageKey& key) {
  if (current_.size() < kLongestOrder) current_.push_back(key);
  const auto place = index_.find(key);
  if (place != index_.end() && place->second >= position_) position_ = place->second + 1;
}

void PrefetchOrder::FinishStep(size_t puts) {
  if (!current_.empty() && current_.size() * 2 >= puts) {
    learned_ = std::move(current_);
    index_.clear();
    index_.reserve(learned_.size());
    // The first place counts where a key came twice.
    for (size_t i = 0; i < learned_.size(); ++i) index_.emplace(learned_[i], i);
  }
  current_.clear();
  position_ = 0;
}

}  // namespace hyperframes
