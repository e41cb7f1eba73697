// Leadership over a store: the epoch that grows on every start, and a store whose writes are
// refused once a later leader has raised it.
#ifndef HYPERFRAMES_COORDINATOR_STORE_LEADER_STORE_H_
#define HYPERFRAMES_COORDINATOR_STORE_LEADER_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "coordinator/store/store.h"

namespace hyperframes {

class LeaderStore final : public Store {
 public:
  // Raises the epoch in `store`, which must outlive the answer. DataLoss: what stands there is no
  // epoch. Aborted: another leader raised it at the same time. Else the store's statuses.
  static absl::StatusOr<std::unique_ptr<LeaderStore>> TakeLeadership(Store* store);

  // Of this leadership; 1 on the first start ever.
  int64_t epoch() const { return epoch_; }

  absl::StatusOr<StoreEntry> Get(const std::string& key) override;
  absl::StatusOr<std::vector<StoreEntry>> List(const std::string& prefix, int limit) override;
  // As the store's, and Aborted with "leadership lost" once a later leader has taken over.
  absl::StatusOr<int64_t> Commit(const Transaction& transaction) override;

 private:
  LeaderStore(Store* store, int64_t epoch, int64_t revision)
      : store_(store), epoch_(epoch), revision_(revision) {}

  Store* const store_;
  const int64_t epoch_;
  const int64_t revision_;  // Of the epoch's key: the fence.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_STORE_LEADER_STORE_H_
