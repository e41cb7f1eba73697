// What agents say of workers, written into the jobs they belong to.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_WORKER_REPORTS_H_
#define HYPERFRAMES_COORDINATOR_JOBS_WORKER_REPORTS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "coordinator/jobs/job_book.h"
#include "hyperframes/v1/membership.pb.h"

namespace hyperframes {

class WorkerReports {
 public:
  // `book` must outlive this.
  explicit WorkerReports(JobBook* book) : book_(book) {}

  // Applies the full list of a node's workers and returns the ids that nobody wants any more. A
  // worker that is known to have been started there and is missing in two lists in a row is lost:
  // one list alone may have been written before the worker was. Fails as the store does; the agent
  // then reports again, and nothing that it said is lost. Thread-safe.
  template <typename Reports>
  absl::StatusOr<std::vector<std::string>> Apply(const std::string& node, const Reports& workers) {
    return ApplyList(node, {workers.begin(), workers.end()});
  }

  // Unfinished jobs with a worker, or a worker's log of an earlier attempt, on `node`. Thread-safe.
  std::vector<std::string> UnfinishedJobs(const std::string& node) const;

 private:
  absl::StatusOr<std::vector<std::string>> ApplyList(const std::string& node,
                                                     const std::vector<v1::WorkerReport>& workers);
  absl::Status MarkMissing(const std::string& node, const std::set<std::string>& reported);

  JobBook* const book_;
  Mutex mutex_;
  std::set<std::string> missing_ HF_GUARDED_BY(mutex_);  // Absent from their node's last list.
};

// Writes `report` into the worker's record where it tells something new; counters and ages, which
// change with every report, do not, but the last counters stay with the end. A worker never comes
// back from EXITED. `wall_now` is when it was said.
void MergeReport(const v1::WorkerReport& report, absl::Time wall_now, v1::JobWorkerRecord* worker);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_WORKER_REPORTS_H_
