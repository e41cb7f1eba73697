// The environment of a worker: torchrun's variables, ours, and the job's own.
#ifndef HYPERFRAMES_AGENT_SERVICE_WORKER_ENVIRONMENT_H_
#define HYPERFRAMES_AGENT_SERVICE_WORKER_ENVIRONMENT_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "hyperframes/v1/agent.pb.h"

namespace hyperframes {

// What this node adds to a request.
struct WorkerSurroundings {
  std::string node;
  std::string worker_socket;
  // GpuMachine::WorkerVariables of the rank's GPU: ours to set as well.
  std::map<std::string, std::string> device_variables;
  std::map<std::string, std::string> base;  // The agent's own environment, for PATH and the like.
};

// Weakest first: the agent's own environment without anything of ours, the job's `env`, then ours.
// InvalidArgument names a variable of the job's that is ours to set.
absl::StatusOr<std::map<std::string, std::string>> WorkerEnvironment(
    const v1::StartWorkerRequest& request, const WorkerSurroundings& surroundings);

// What a process that attaches finds there of ours, as if this node had started it.
std::map<std::string, std::string> AttachedEnvironment(const v1::AdoptWorkerRequest& request,
                                                       const WorkerSurroundings& surroundings);

// This process's environment.
std::map<std::string, std::string> OwnEnvironment();

// How often the job of "<job>-<attempt>-<rank>" was started before this attempt: the coordinator
// counts attempts from 1. 0 when unreadable.
int RestartsOf(const std::string& worker_id);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_WORKER_ENVIRONMENT_H_
