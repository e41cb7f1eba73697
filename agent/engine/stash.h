// Sources whose copy-out has not yet been waited for, in Put order and bounded in bytes. What may
// be released depends on what was waited for and never on how far a copy happens to be: a peak
// that depended on timing could not be planned.
#ifndef HYPERFRAMES_AGENT_ENGINE_STASH_H_
#define HYPERFRAMES_AGENT_ENGINE_STASH_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "agent/device/device.h"
#include "agent/engine/frame_engine.h"
#include "common/units.h"

namespace hyperframes {

// Not thread-safe: the engine's lock guards it. Waiting happens outside that lock, between
// OldestUnwaited and MarkWaited.
class Stash {
 public:
  struct Entry {
    StorageHandle handle = 0;
    Bytes bytes = 0;
    // Null: release needs no wait (a planted fault, or a copy that failed), once it has started.
    std::shared_ptr<const Event> copied_out;
    uint64_t company = 0;
    bool waited = false;
  };

  // `company`: the number of the batch that it travels in; 0: none.
  void Add(StorageHandle handle, Bytes bytes, std::shared_ptr<const Event> copied_out,
           uint64_t company = 0);

  // The copy-out of `handle`, which was added before it started, has started.
  void SetCopiedOut(StorageHandle handle, const std::shared_ptr<const Event>& copied_out);

  // The oldest source that must be waited for so that at most `limit` bytes stay unwaited; false
  // when there is none. With `spare_newest` a single unwaited source may be larger than the limit.
  bool OldestUnwaited(Bytes limit, bool spare_newest, Entry* oldest) const;

  // The copy-out of `handle` was waited for, and with it its company behind it. Harmless when
  // another thread was faster.
  void MarkWaited(StorageHandle handle);

  // Removes and returns the waited sources before the first unwaited one.
  std::vector<StorageHandle> TakeWaited();

  // Bytes of sources not yet taken.
  Bytes held_bytes() const { return held_bytes_; }

 private:
  std::deque<Entry>::iterator Find(StorageHandle handle);

  std::deque<Entry> entries_;  // In Put order; handles ascend.
  size_t waited_ = 0;          // Length of the waited prefix.
  Bytes held_bytes_ = 0;
  Bytes unwaited_bytes_ = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_STASH_H_
