// Which rank's end was the cause of a job's failure, and what may follow from it. Pure functions.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_FAILURES_H_
#define HYPERFRAMES_COORDINATOR_JOBS_FAILURES_H_

#include <string>

#include "hyperframes/v1/records.pb.h"

namespace hyperframes {

// A worker that exits with this asks not to be started again, whatever the budget.
constexpr int kDoNotRestartExitCode = 93;

// The message of a worker whose agent does not know it any more, or whose node is gone.
constexpr char kLostWorker[] = "worker_lost";

bool Failed(const v1::JobWorkerRecord& worker);

// The rank that failed first, or null. Ends on one node are ordered by its clock. Between nodes the
// times are as exact as a report is quick: of ends that close together a signal is a cause more
// often than a consequence (a peer of a killed rank exits with an error of its communication), and
// SIGTERM least often, since it is what the job's own end sends.
const v1::JobWorkerRecord* FirstFailed(const v1::JobRecord& job);

// "exit_code", "signal" or "worker_lost".
std::string FailureReason(const v1::JobWorkerRecord& worker);
// True for the words of FailureReason.
bool IsFailureReason(const std::string& reason);

// How the worker ended, and, where the job may be restarted, why it is not.
std::string FailureText(const v1::JobRecord& job, const v1::JobWorkerRecord& worker);

// The budget is not used up, and no rank has asked not to be restarted.
bool MayRestart(const v1::JobRecord& job);

// No rank of this attempt has told of a step.
bool EndedWithoutStep(const v1::JobRecord& job);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_FAILURES_H_
