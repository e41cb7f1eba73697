// The files through which agent and shim speak, one directory for each worker. Neither a pipe nor
// waitpid: both would die with the agent.
//
//   spec.json    by the agent, before the shim starts: what to run
//   status.json  by the shim, replaced whole at every change: what became of it
//   log          by the shim: what the worker and its children printed, bounded
//   lock         held by the shim for as long as it lives
//   reason       by the agent: why it ends the worker, if it is not the coordinator's wish
//   told         by the agent: the coordinator knows of the end
#ifndef HYPERFRAMES_AGENT_SUPERVISOR_WORKER_FILES_H_
#define HYPERFRAMES_AGENT_SUPERVISOR_WORKER_FILES_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/supervisor/process_identity.h"
#include "common/units.h"

namespace hyperframes {

enum class WorkerState { kStarting = 1, kRunning = 2, kStopping = 3, kExited = 4 };

// The only function that knows which moves are legal. Staying is not a move.
constexpr bool IsLegalMove(WorkerState from, WorkerState to) {
  return static_cast<int>(from) < static_cast<int>(to);
}

struct WorkerSpec {
  std::string worker_id;  // "<job>-<attempt>-<rank>".
  std::string job_id;
  int rank = 0;
  std::string gpu;
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;  // All of it: nothing is inherited.
  std::string working_directory;                   // Empty: the worker's own directory.
  Bytes log_limit = 64 * kMiB;
};

struct WorkerStatus {
  WorkerState state = WorkerState::kStarting;
  ProcessIdentity shim;
  ProcessIdentity worker;
  int exit_code = 0;
  int term_signal = 0;
  std::string message;  // At most 512 bytes.
  // When the worker itself ended, by the monotonic clock of the boot that `shim` names, which all
  // processes share. InfinitePast: not yet, or not known.
  absl::Time ended = absl::InfinitePast();
};

constexpr char kSpecFile[] = "spec.json";
constexpr char kStatusFile[] = "status.json";
constexpr char kLogFile[] = "log";
constexpr char kLockFile[] = "lock";
constexpr char kReasonFile[] = "reason";
constexpr char kToldFile[] = "told";

// The id becomes the name of a directory.
bool IsWorkerId(const std::string& id);

// Durable: a worker started once must not start again after a power cut. Statuses as
// WriteRecordFile and ReadRecordFile; DataLoss: unreadable content.
absl::Status WriteSpec(const std::string& directory, const WorkerSpec& spec);
absl::StatusOr<WorkerSpec> ReadSpec(const std::string& directory);
absl::Status WriteStatus(const std::string& directory, const WorkerStatus& status);
absl::StatusOr<WorkerStatus> ReadStatus(const std::string& directory);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SUPERVISOR_WORKER_FILES_H_
