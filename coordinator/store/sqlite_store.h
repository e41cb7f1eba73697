// The default store: one SQLite file in a state directory that one coordinator owns.
#ifndef HYPERFRAMES_COORDINATOR_STORE_SQLITE_STORE_H_
#define HYPERFRAMES_COORDINATOR_STORE_SQLITE_STORE_H_

#include <sqlite3.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/store/directory_lock.h"
#include "coordinator/store/store.h"

namespace hyperframes {

class SqliteStore final : public Store {
 public:
  struct Options {
    absl::Duration busy_timeout = absl::Seconds(5);
    // Told how long each commit took, with its lock wait. Called with no lock held.
    std::function<void(absl::Duration)> on_commit;
    const Clock* clock = MonotonicClock();
  };

  // Opens or makes `<directory>/state.sqlite` (and the directory, one level), locked for this
  // process. InvalidArgument: the directory cannot be made or written. FailedPrecondition: another
  // process owns it, it is on a network filesystem, or another version of the schema wrote it.
  // DataLoss: the file is not a sound database; it is left as it was found.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& directory,
                                                           Options options);
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& directory) {
    return Open(directory, Options());
  }
  ~SqliteStore() override;

  absl::StatusOr<StoreEntry> Get(const std::string& key) override;
  absl::StatusOr<std::vector<StoreEntry>> List(const std::string& prefix, int limit) override;
  absl::StatusOr<int64_t> Commit(const Transaction& transaction) override;

 private:
  SqliteStore(std::string path, Options options, std::unique_ptr<DirectoryLock> lock)
      : path_(std::move(path)), options_(std::move(options)), lock_(std::move(lock)) {}

  absl::Status Prepare() HF_EXCLUDES(mutex_);
  absl::Status CheckSchema() HF_REQUIRES(mutex_);
  absl::StatusOr<int64_t> CommitLocked(const Transaction& transaction) HF_REQUIRES(mutex_);
  absl::StatusOr<int64_t> Write(const Transaction& transaction) HF_REQUIRES(mutex_);
  absl::Status Execute(const char* sql) HF_REQUIRES(mutex_);
  absl::StatusOr<int64_t> Number(const char* sql) HF_REQUIRES(mutex_);
  absl::StatusOr<int64_t> ModRevision(const std::string& key) HF_REQUIRES(mutex_);
  // The status of a failed SQLite call, with the path and what was being done.
  absl::Status Error(int code, const std::string& doing) const;

  const std::string path_;
  const Options options_;
  const std::unique_ptr<DirectoryLock> lock_;
  Mutex mutex_;
  sqlite3* database_ HF_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_STORE_SQLITE_STORE_H_
