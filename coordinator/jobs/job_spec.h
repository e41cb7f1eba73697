// What a job may ask for.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_JOB_SPEC_H_
#define HYPERFRAMES_COORDINATOR_JOBS_JOB_SPEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

constexpr int kMaxRanks = 1024;
constexpr int kMaxCommandArguments = 1024;
constexpr int kMaxEnvironment = 1024;
constexpr int kMostRestarts = 1000;
constexpr int64_t kLongestTimeLimitSeconds = int64_t{366} * 86400;
constexpr size_t kMaxSpecTextBytes = size_t{128} * 1024;  // Of command, and of environment.

// InvalidArgument names the field, its value (cut) and what is accepted. Also for a field that this
// version does not know: to run a job without something it asked for would be a silent fallback.
absl::Status ValidateJobSpec(const v1::JobSpec& spec);

// True for variables that the agent sets: HYPERFRAMES_*, torchrun's, CUDA_VISIBLE_DEVICES.
bool IsReservedVariable(const std::string& name);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_JOB_SPEC_H_
