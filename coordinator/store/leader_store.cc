#include "coordinator/store/leader_store.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr char kEpochKey[] = "leader/epoch";

}  // namespace

absl::StatusOr<std::unique_ptr<LeaderStore>> LeaderStore::TakeLeadership(Store* store) {
  int64_t epoch = 0;
  int64_t revision = 0;
  const absl::StatusOr<StoreEntry> entry = store->Get(kEpochKey);
  if (entry.ok()) {
    if (!absl::SimpleAtoi(entry->value, &epoch) || epoch < 1) {
      return absl::DataLossError(absl::StrCat("the store's ", kEpochKey, " reads '",
                                              entry->value.substr(0, 32),
                                              "', which is no epoch; restore a backup"));
    }
    revision = entry->mod_revision;
  } else if (!absl::IsNotFound(entry.status())) {
    return entry.status();
  }
  Transaction raise;
  raise.compares.push_back({kEpochKey, revision});
  raise.puts.push_back({kEpochKey, absl::StrCat(epoch + 1)});
  HF_ASSIGN_OR_RETURN(const int64_t raised, store->Commit(raise));
  return std::unique_ptr<LeaderStore>(new LeaderStore(store, epoch + 1, raised));
}

absl::StatusOr<StoreEntry> LeaderStore::Get(const std::string& key) { return store_->Get(key); }

absl::StatusOr<std::vector<StoreEntry>> LeaderStore::List(const std::string& prefix, int limit) {
  return store_->List(prefix, limit);
}

absl::StatusOr<int64_t> LeaderStore::Commit(const Transaction& transaction) {
  Transaction fenced = transaction;
  fenced.compares.insert(fenced.compares.begin(), {kEpochKey, revision_});
  absl::StatusOr<int64_t> revision = store_->Commit(fenced);
  if (absl::IsAborted(revision.status())) {
    const absl::StatusOr<StoreEntry> entry = store_->Get(kEpochKey);
    if (entry.ok() && entry->mod_revision != revision_) {
      return absl::AbortedError(absl::StrCat("leadership lost: epoch ", epoch_,
                                             " was followed by epoch ", entry->value.substr(0, 20),
                                             "; stop this coordinator"));
    }
  }
  return revision;
}

}  // namespace hyperframes
