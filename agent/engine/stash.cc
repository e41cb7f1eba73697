#include "agent/engine/stash.h"

#include <algorithm>
#include <utility>

namespace hyperframes {

void Stash::Add(StorageHandle handle, Bytes bytes, std::shared_ptr<const Event> copied_out,
                uint64_t company) {
  entries_.push_back({handle, bytes, std::move(copied_out), company, /*waited=*/false});
  held_bytes_ += bytes;
  unwaited_bytes_ += bytes;
}

bool Stash::OldestUnwaited(Bytes limit, bool spare_newest, Entry* oldest) const {
  const size_t unwaited = entries_.size() - waited_;
  if (unwaited == 0 || unwaited_bytes_ <= limit) return false;
  if (spare_newest && unwaited == 1) return false;
  *oldest = entries_[waited_];
  return true;
}

std::deque<Stash::Entry>::iterator Stash::Find(StorageHandle handle) {
  const auto entry = std::lower_bound(
      entries_.begin(), entries_.end(), handle,
      [](const Entry& entry, StorageHandle wanted) { return entry.handle < wanted; });
  return entry != entries_.end() && entry->handle == handle ? entry : entries_.end();
}

void Stash::SetCopiedOut(StorageHandle handle, const std::shared_ptr<const Event>& copied_out) {
  const auto entry = Find(handle);
  if (entry != entries_.end() && !entry->waited) entry->copied_out = copied_out;
}

void Stash::MarkWaited(StorageHandle handle) {
  auto entry = Find(handle);
  if (entry == entries_.end() || entry->waited) return;
  const uint64_t company = entry->company;
  do {
    entry->waited = true;
    entry->copied_out.reset();
    unwaited_bytes_ -= entry->bytes;
    ++entry;
  } while (company != 0 && entry != entries_.end() && entry->company == company);
  while (waited_ < entries_.size() && entries_[waited_].waited) ++waited_;
}

std::vector<StorageHandle> Stash::TakeWaited() {
  std::vector<StorageHandle> taken;
  taken.reserve(waited_);
  for (; waited_ > 0; --waited_) {
    taken.push_back(entries_.front().handle);
    held_bytes_ -= entries_.front().bytes;
    entries_.pop_front();
  }
  return taken;
}

}  // namespace hyperframes
