// The commands of hfctl by file. Each returns its exit code, or a status that becomes one.
#ifndef HYPERFRAMES_CLIENT_CLI_COMMANDS_H_
#define HYPERFRAMES_CLIENT_CLI_COMMANDS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"

namespace hyperframes {

// node_commands.cc
absl::StatusOr<int> RunNodes(CommandLine* line);
absl::StatusOr<int> RunGpus(CommandLine* line);
// doctor_command.cc
// Whether this process was started by another one's RunDoctor, to measure collectives: then it does
// not come back from it. No command for people.
bool MeasuresCollectives(const std::vector<std::string>& arguments);
absl::StatusOr<int> RunDoctor(CommandLine* line);
// submit_command.cc
absl::StatusOr<int> RunSubmit(CommandLine* line);
// job_commands.cc
absl::StatusOr<int> RunJobs(CommandLine* line);
absl::StatusOr<int> RunJobDescribe(CommandLine* line);
absl::StatusOr<int> RunJobWait(CommandLine* line);
absl::StatusOr<int> RunJobCancel(CommandLine* line);
absl::StatusOr<int> RunJobPreempt(CommandLine* line);
absl::StatusOr<v1::Job> FetchJob(Client* client, const std::string& id);
// log_command.cc
absl::StatusOr<int> RunJobLogs(CommandLine* line);
// plan_commands.cc
absl::StatusOr<int> RunPlan(CommandLine* line);
absl::StatusOr<int> RunExplain(CommandLine* line);
// checkpoint_commands.cc
absl::StatusOr<int> RunCheckpoints(CommandLine* line);
// top_command.cc
absl::StatusOr<int> RunTop(CommandLine* line);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CLI_COMMANDS_H_
