#include "coordinator/store/memory_store.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {

absl::StatusOr<StoreEntry> MemoryStore::Get(const std::string& key) {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return absl::NotFoundError(absl::StrCat("no key '", key, "'"));
  return found->second;
}

absl::StatusOr<std::vector<StoreEntry>> MemoryStore::List(const std::string& prefix, int limit) {
  MutexLock lock(&mutex_);
  std::vector<StoreEntry> found;
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && absl::StartsWith(it->first, prefix) &&
       static_cast<int>(found.size()) < limit;
       ++it) {
    found.push_back(it->second);
  }
  return found;
}

absl::StatusOr<int64_t> MemoryStore::Commit(const Transaction& transaction) {
  HF_RETURN_IF_ERROR(CheckTransaction(transaction));
  MutexLock lock(&mutex_);
  if (!script_.empty()) {
    const absl::Status scripted = script_.front();
    script_.pop_front();
    if (!scripted.ok()) return scripted;
  }
  for (const auto& compare : transaction.compares) {
    const auto found = entries_.find(compare.key);
    const int64_t revision = found == entries_.end() ? 0 : found->second.mod_revision;
    if (revision != compare.mod_revision) {
      return absl::AbortedError(absl::StrCat("'", compare.key, "' is at revision ", revision,
                                             ", expected ", compare.mod_revision));
    }
  }
  ++revision_;
  for (const auto& put : transaction.puts) {
    entries_[put.key] = StoreEntry{put.key, put.value, revision_};
  }
  for (const auto& key : transaction.deletes) entries_.erase(key);
  return revision_;
}

void MemoryStore::ScriptCommits(std::deque<absl::Status> statuses) {
  MutexLock lock(&mutex_);
  script_ = std::move(statuses);
}

}  // namespace hyperframes
