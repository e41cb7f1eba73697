#include "agent/engine/open_batch.h"

namespace hyperframes {

void OpenBatch::Add(StorageHandle handle, size_t arena, const CopyPart& part,
                    void* compute_stream) {
  arena_ = arena;
  bytes_ += part.bytes;
  parts_.push_back(part);
  handles_.push_back(handle);
  const auto& known = compute_streams_;
  if (std::find(known.begin(), known.end(), compute_stream) == known.end()) {
    compute_streams_.push_back(compute_stream);
  }
}

void OpenBatch::StartAfter(const std::shared_ptr<const Event>& event) {
  // Storages that were copied out together share their event.
  if (event == nullptr || (!start_after_.empty() && start_after_.back() == event)) return;
  start_after_.push_back(event);
}

void OpenBatch::Clear() {
  ++number_;
  bytes_ = 0;
  parts_.clear();
  handles_.clear();
  compute_streams_.clear();
  start_after_.clear();
}

}  // namespace hyperframes
