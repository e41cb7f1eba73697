// Waiting for a job's end, for every command that does.
#ifndef HYPERFRAMES_CLIENT_CLI_WAIT_FOR_JOB_H_
#define HYPERFRAMES_CLIENT_CLI_WAIT_FOR_JOB_H_

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/command.h"

namespace hyperframes {

// "job-1 FAILED: rank 1 ended with exit code 3": one line about a job.
std::string OutcomeText(const v1::Job& job);
void PrintOutcome(const v1::Job& job, std::ostream* out);

// Blocks until the job has ended or --timeout has passed (none without it), and prints how it
// ended. Tells on stderr every two seconds in which state it is. The exit code: 0 for SUCCEEDED,
// else 1. Client::WaitJob's codes.
absl::StatusOr<int> WaitForJob(CommandLine* line, Client* client, const std::string& id);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CLI_WAIT_FOR_JOB_H_
