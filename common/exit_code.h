// The one place that turns a status into a process's exit code.
#ifndef HYPERFRAMES_COMMON_EXIT_CODE_H_
#define HYPERFRAMES_COMMON_EXIT_CODE_H_

#include "absl/status/status.h"

namespace hyperframes {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitUnreachable = 3;
constexpr int kExitNotFound = 4;
constexpr int kExitRefused = 5;
constexpr int kExitTryAgain = 75;
constexpr int kExitDoNotRestart = 93;  // A worker that says: the same error would come again.
constexpr int kExitTimedOut = 124;

// 0 OK; 2 InvalidArgument, OutOfRange; 3 Unavailable; 4 NotFound; 5 PermissionDenied,
// Unauthenticated, FailedPrecondition, AlreadyExists, ResourceExhausted; 75 Aborted;
// 124 DeadlineExceeded; 1 everything else.
int ExitCode(const absl::Status& status);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_EXIT_CODE_H_
