// A store that forgets with the process: for tests, with faults on request.
#ifndef HYPERFRAMES_COORDINATOR_STORE_MEMORY_STORE_H_
#define HYPERFRAMES_COORDINATOR_STORE_MEMORY_STORE_H_

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "coordinator/store/store.h"

namespace hyperframes {

class MemoryStore final : public Store {
 public:
  absl::StatusOr<StoreEntry> Get(const std::string& key) override;
  absl::StatusOr<std::vector<StoreEntry>> List(const std::string& prefix, int limit) override;
  absl::StatusOr<int64_t> Commit(const Transaction& transaction) override;

  // The next commits take these statuses in order; an OK one lets its commit through.
  void ScriptCommits(std::deque<absl::Status> statuses);

 private:
  Mutex mutex_;
  std::map<std::string, StoreEntry> entries_ HF_GUARDED_BY(mutex_);
  std::deque<absl::Status> script_ HF_GUARDED_BY(mutex_);
  int64_t revision_ HF_GUARDED_BY(mutex_) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_STORE_MEMORY_STORE_H_
