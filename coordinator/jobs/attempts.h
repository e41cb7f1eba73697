// What is kept of a job's earlier attempts: how they ended, and where their logs are. Pure.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_ATTEMPTS_H_
#define HYPERFRAMES_COORDINATOR_JOBS_ATTEMPTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hyperframes/v1/records.pb.h"

namespace hyperframes {

// Of a job that restarts for ever the newest so many; their agents keep as many logs.
constexpr int kMostAttemptsKept = 8;

// Enters the attempt that `record` holds among the earlier ones. Call before its workers go.
void KeepAttempt(const std::string& reason, const std::string& cause, absl::Time wall_now,
                 v1::JobRecord* record);

struct LogPlace {
  std::string node;  // Empty: the rank was not started, or not yet, so there is nothing to read.
  std::string worker_id;
};

// Where the log of `rank` in `attempt` is; 0: the newest one. InvalidArgument: no such rank;
// NotFound: an attempt that is not kept, or that there never was.
absl::StatusOr<LogPlace> FindLog(const v1::JobRecord& record, int attempt, int rank);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_ATTEMPTS_H_
