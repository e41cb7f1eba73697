#include "agent/service/worker_environment.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace hyperframes {
namespace {

constexpr const char* kTorchrunNames[] = {
    "RANK",       "LOCAL_RANK",  "WORLD_SIZE",  "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
};

// Ours to set. HYPERFRAMES_MODE and the like configure the library in the worker and are not.
bool IsReserved(const std::string& name) {
  static constexpr const char* kOurs[] = {
      "HYPERFRAMES_COORDINATOR",   "HYPERFRAMES_JOB_ID",  "HYPERFRAMES_JOB_TOKEN",
      "HYPERFRAMES_WORKER_ID",     "HYPERFRAMES_NODE",    "HYPERFRAMES_GPU",
      "HYPERFRAMES_WORKER_SOCKET", "HYPERFRAMES_BACKEND", "HYPERFRAMES_HOST_DEVICES"};
  const auto is_name = [&](const char* reserved) { return name == reserved; };
  return std::any_of(std::begin(kTorchrunNames), std::end(kTorchrunNames), is_name) ||
         std::any_of(std::begin(kOurs), std::end(kOurs), is_name) ||
         name.rfind("TORCHELASTIC_", 0) == 0;
}

bool IsName(const std::string& name) {
  return !name.empty() && name.find('=') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

int RestartsOf(const std::string& worker_id) {
  const size_t rank = worker_id.rfind('-');
  if (rank == std::string::npos || rank == 0) return 0;
  const size_t attempt = worker_id.rfind('-', rank - 1);
  if (attempt == std::string::npos) return 0;
  return std::max(0, atoi(worker_id.substr(attempt + 1, rank - attempt - 1).c_str()) - 1);
}

std::map<std::string, std::string> OwnEnvironment() {
  std::map<std::string, std::string> own;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) own[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return own;
}

absl::StatusOr<std::map<std::string, std::string>> WorkerEnvironment(
    const v1::StartWorkerRequest& request, const WorkerSurroundings& surroundings) {
  std::map<std::string, std::string> result;
  for (const auto& [name, value] : surroundings.base) {
    // The agent's settings have the same prefix and mean something else in a worker.
    if (name.rfind("HYPERFRAMES_", 0) != 0 && !IsReserved(name)) result[name] = value;
  }
  // A log that is followed shows a line when it is printed, not 8 KiB later.
  result["PYTHONUNBUFFERED"] = "1";
  for (const auto& [name, value] : request.env()) {
    if (!IsName(name) || IsReserved(name) || surroundings.device_variables.count(name) > 0) {
      return absl::InvalidArgumentError("env: '" + name.substr(0, 64) +
                                        "' cannot be set by a job: HyperFrames sets torchrun's "
                                        "variables and its own");
    }
    result[name] = value;
  }
  const int local_world = std::max(1, request.local_world_size());
  result["RANK"] = std::to_string(request.rank());
  result["LOCAL_RANK"] = std::to_string(request.local_rank());
  result["WORLD_SIZE"] = std::to_string(request.world_size());
  result["LOCAL_WORLD_SIZE"] = std::to_string(local_world);
  // Without the coordinator's word: right where every node has equally many ranks.
  const int guessed = std::max(0, request.rank() - request.local_rank()) / local_world;
  result["GROUP_RANK"] = std::to_string(request.has_group_rank() ? request.group_rank() : guessed);
  result["MASTER_ADDR"] = request.master_address();
  result["MASTER_PORT"] = std::to_string(request.master_port());
  result["TORCHELASTIC_RESTART_COUNT"] = std::to_string(
      request.has_restart_count() ? request.restart_count() : RestartsOf(request.worker_id()));
  result["TORCHELASTIC_RUN_ID"] = request.job_id();
  result["HYPERFRAMES_COORDINATOR"] = request.coordinator_address();
  result["HYPERFRAMES_JOB_ID"] = request.job_id();
  result["HYPERFRAMES_JOB_TOKEN"] = request.job_token();
  result["HYPERFRAMES_WORKER_ID"] = request.worker_id();
  result["HYPERFRAMES_NODE"] = surroundings.node;
  result["HYPERFRAMES_GPU"] = request.gpu();
  result["HYPERFRAMES_WORKER_SOCKET"] = surroundings.worker_socket;
  for (const auto& [name, value] : surroundings.device_variables) result[name] = value;
  return result;
}

std::map<std::string, std::string> AttachedEnvironment(const v1::AdoptWorkerRequest& request,
                                                       const WorkerSurroundings& surroundings) {
  v1::StartWorkerRequest start;
  start.set_worker_id(request.worker_id());
  start.set_job_id(request.job_id());
  start.set_job_token(request.job_token());
  start.set_gpu(request.gpu());
  // It asks for no variable of its own, so nothing is refused.
  std::map<std::string, std::string> result = *WorkerEnvironment(start, surroundings);
  result.erase("HYPERFRAMES_COORDINATOR");
  for (auto it = result.begin(); it != result.end();) {
    // torchrun's are there already, and are torchrun's to set.
    it = it->first.rfind("HYPERFRAMES_", 0) == 0 ? std::next(it) : result.erase(it);
  }
  return result;
}

}  // namespace hyperframes
