// Every checkpoint that is remembered, durable: a change is in the store before anybody is told.
#ifndef HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_BOOK_H_
#define HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_BOOK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/store/store.h"
#include "hyperframes/v1/checkpoint.pb.h"
#include "hyperframes/v1/records.pb.h"

namespace hyperframes {

class CheckpointBook {
 public:
  using Record = std::shared_ptr<const v1::CheckpointRecord>;
  // Above these the oldest are forgotten; the newest committed one of a directory never is.
  struct Options {
    size_t max_committed_per_directory = 1000;
    size_t max_committed = 10000;
    size_t max_aborted = 100;
  };
  struct Filter {
    std::string job_id;     // Empty: of every job.
    std::string directory;  // Empty: of every directory.
    bool committed_only = false;
  };

  // Reads all records. `store` and `wall_clock` (times are kept across restarts) must outlive the
  // book. DataLoss: a record cannot be read; the message names its key. Else the store's statuses.
  static absl::StatusOr<std::unique_ptr<CheckpointBook>> Load(Options options, Store* store,
                                                              const Clock* wall_clock);

  // Writes a new OPEN one; id, state, shards, ages and message are the book's. FailedPrecondition:
  // the directory has one under way. ResourceExhausted: it has none that is committed, and
  // max_committed other directories have. Else the store's statuses. Thread-safe, like all here.
  absl::StatusOr<Record> Add(const v1::Checkpoint& checkpoint);

  // Applies `edit` to a copy, commits it if anything changed, and publishes it; in the same
  // transaction what is above the bounds is forgotten. `edit` must not call the book; an error it
  // returns is returned, and nothing changes. NotFound; Internal: an illegal move.
  absl::StatusOr<Record> Update(const std::string& id,
                                const std::function<absl::Status(v1::Checkpoint*)>& edit);

  // Forgets it and returns it as it was. NotFound. FailedPrecondition: it is under way, or the
  // newest committed one of its directory.
  absl::StatusOr<Record> Remove(const std::string& id);

  // NotFound: never there, or forgotten.
  absl::StatusOr<Record> Get(const std::string& id) const;
  // Newest first, at most `limit`.
  std::vector<Record> List(const Filter& filter, size_t limit) const;
  // OPEN and PREPARED ones, oldest first.
  std::vector<Record> UnderWay() const;
  // The directory's one that is OPEN or PREPARED, or null.
  Record UnderWayIn(const std::string& directory) const;
  std::map<v1::CheckpointState, int64_t> CountByState() const;

  // Blocks until the state differs from `known`, `wait` has passed or Stop was called; the
  // checkpoint as it then is. NotFound, also when it is forgotten meanwhile.
  absl::StatusOr<Record> Watch(const std::string& id, v1::CheckpointState known,
                               absl::Duration wait) const;

  // Ends all waits, now and later.
  void Stop();

  absl::Time wall_now() const { return wall_clock_->Now(); }

 private:
  // Ids by sequence.
  using Sequence = std::map<int64_t, std::string>;

  CheckpointBook(Options options, Store* store, const Clock* wall_clock)
      : options_(options), store_(store), wall_clock_(wall_clock) {}

  absl::Status Read();
  // What is to be forgotten when one more of this directory is in `state`.
  std::vector<Record> Forgettable(const std::string& directory, v1::CheckpointState state) const
      HF_EXCLUDES(mutex_);
  absl::Status CheckRoom(const std::string& directory) const HF_EXCLUDES(mutex_);
  bool IsNewestCommitted(const v1::CheckpointRecord& record) const HF_REQUIRES(mutex_);
  absl::StatusOr<Record> Find(const std::string& id) const HF_REQUIRES(mutex_);
  void Insert(Record record) HF_REQUIRES(mutex_);
  void Erase(const v1::CheckpointRecord& record) HF_REQUIRES(mutex_);
  // `record` may be null: only to forget.
  void Publish(const Record& record, const std::vector<Record>& forgotten) HF_EXCLUDES(mutex_);

  const Options options_;
  Store* const store_;
  const Clock* const wall_clock_;
  // One writer at a time from read to publish; readers never wait for the disk.
  Mutex write_mutex_ HF_ACQUIRED_BEFORE(mutex_);
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::map<std::string, Record> records_ HF_GUARDED_BY(mutex_);
  Sequence by_sequence_ HF_GUARDED_BY(mutex_);
  std::map<std::string, Sequence> committed_ HF_GUARDED_BY(mutex_);     // By directory.
  std::map<std::string, std::string> under_way_ HF_GUARDED_BY(mutex_);  // Id by directory.
  Sequence aborted_ HF_GUARDED_BY(mutex_);
  int64_t last_sequence_ HF_GUARDED_BY(mutex_) = 0;
  bool stopped_ HF_GUARDED_BY(mutex_) = false;
};

// "1, 3 and 12 more": ranks that have not reported what they have written. Empty: none.
std::string MissingRanks(const v1::Checkpoint& checkpoint);

// As users see it: with ages, and in OPEN the ranks that are missing.
v1::Checkpoint ToCheckpoint(const v1::CheckpointRecord& record, absl::Time wall_now);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_CHECKPOINTS_CHECKPOINT_BOOK_H_
