// Every job, durable: a change is in the store before anybody is told of it.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_JOB_BOOK_H_
#define HYPERFRAMES_COORDINATOR_JOBS_JOB_BOOK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/store/store.h"
#include "hyperframes/v1/coordinator.pb.h"
#include "hyperframes/v1/records.pb.h"

namespace hyperframes {

class JobBook {
 public:
  using Record = std::shared_ptr<const v1::JobRecord>;
  struct Options {
    size_t max_unfinished = 10000;
    size_t max_finished = 1000;  // Older ones are forgotten, once all their workers have ended.
    // Versions start above this; a later leadership's start must be larger than all it will reach.
    int64_t first_version = 1;
    // Keys "<prefix><job id>" that are deleted with their job.
    std::vector<std::string> companion_prefixes;
  };

  // Reads all jobs. `store` and `wall_clock` (times are kept across restarts) must outlive the
  // book. DataLoss: a record cannot be read; the message names its key. Else the store's statuses.
  static absl::StatusOr<std::unique_ptr<JobBook>> Load(Options options, Store* store,
                                                       const Clock* wall_clock);

  // A new QUEUED job, or the earlier one with this idempotency key (if not empty). InvalidArgument
  // as ValidateJobSpec; AlreadyExists: the key was used for another spec; ResourceExhausted: the
  // queue is full. Thread-safe, like all here.
  absl::StatusOr<Record> Submit(const v1::JobSpec& spec, const std::string& idempotency_key);

  // The unfinished attached job of this key. NotFound: there is none.
  absl::StatusOr<Record> FindAttached(const std::string& key) const;
  // A new attached job, STARTING, whose ranks are to attach. Statuses as Submit.
  absl::StatusOr<Record> SubmitAttached(const v1::JobSpec& spec, const std::string& key);

  // NotFound: unknown, or forgotten.
  absl::StatusOr<Record> Get(const std::string& id) const;
  // Newest first, at most `limit`.
  std::vector<Record> List(size_t limit) const;
  // In order of submission: unfinished jobs, and finished ones with a worker that may still run.
  std::vector<Record> Active() const;
  // Unfinished and finished jobs by state.
  std::map<v1::JobState, int64_t> CountByState() const;

  // Blocks until the version differs from `after_version`, `wait` has passed or Stop was called;
  // the job as it then is. Intermediate states may be missed. NotFound as Get.
  absl::StatusOr<Record> Watch(const std::string& id, int64_t after_version,
                               absl::Duration wait) const;

  // Starts the end of a job. Idempotent. NotFound; FailedPrecondition: it has ended otherwise, or
  // it is attached and its ranks may not be sent a signal.
  absl::StatusOr<Record> Cancel(const std::string& id, bool may_signal = false);
  // The same for a job that holds GPUs: its workers have their grace, then it is PREEMPTED.
  // FailedPrecondition also: it is QUEUED and holds none.
  absl::StatusOr<Record> Preempt(const std::string& id, bool may_signal = false);

  // Applies `edit` to a copy, commits it if anything changed, and publishes it. `edit` must not
  // call the book; an error it returns is returned, and nothing changes. Internal: an illegal move.
  absl::StatusOr<Record> Update(const std::string& id,
                                const std::function<absl::Status(v1::JobRecord*)>& edit);

  // Sets reason and message in memory alone: they are found anew after a restart, and a queue of
  // thousands whose explanations change with every free GPU must not write to the disk for it.
  void Explain(const std::string& id, const std::string& reason, const std::string& message);

  // Called after every published change, with no lock held. Set before the book is shared.
  void set_on_change(std::function<void()> on_change) { on_change_ = std::move(on_change); }

  // Ends all waits, now and later.
  void Stop();

  absl::Time wall_now() const { return wall_clock_->Now(); }

 private:
  JobBook(Options options, Store* store, const Clock* wall_clock)
      : options_(std::move(options)), store_(store), wall_clock_(wall_clock) {}

  absl::Status Read();
  // Gives it its id, token and times, writes it, and publishes it.
  absl::StatusOr<Record> Enter(const v1::JobSpec& spec, const std::string& key, v1::JobRecord start)
      HF_REQUIRES(write_mutex_) HF_EXCLUDES(mutex_);
  // Records to forget when one more job finishes.
  std::vector<Record> Forgettable() const HF_EXCLUDES(mutex_);
  void Publish(Record record, const std::vector<Record>& forgotten) HF_EXCLUDES(mutex_);
  absl::StatusOr<Record> Find(const std::string& id) const HF_REQUIRES(mutex_);

  const Options options_;
  Store* const store_;
  const Clock* const wall_clock_;
  std::function<void()> on_change_;
  // One writer at a time from read to publish; readers never wait for the disk.
  Mutex write_mutex_ HF_ACQUIRED_BEFORE(mutex_);
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::map<std::string, Record> jobs_ HF_GUARDED_BY(mutex_);
  std::map<int64_t, std::string> by_sequence_ HF_GUARDED_BY(mutex_);
  std::map<std::string, std::string> by_key_ HF_GUARDED_BY(mutex_);
  int64_t last_sequence_ HF_GUARDED_BY(mutex_) = 0;
  int64_t last_version_ HF_GUARDED_BY(mutex_) = 0;
  bool stopped_ HF_GUARDED_BY(mutex_) = false;
};

// As users see it.
v1::Job ToJob(const v1::JobRecord& record, absl::Time wall_now);

// Begins the message of a RUNNING job that says more than that it runs; it stays until the next.
constexpr char kItsRanksRun[] = "its ranks run; ";

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_JOB_BOOK_H_
