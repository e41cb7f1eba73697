// The shim: one small process that starts one worker and outlives every agent. It owns the worker's
// log and exit status, and ends the whole tree of processes when asked. No gRPC, one thread.
#ifndef HYPERFRAMES_AGENT_SUPERVISOR_SHIM_H_
#define HYPERFRAMES_AGENT_SUPERVISOR_SHIM_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/supervisor/bounded_log.h"
#include "agent/supervisor/worker_files.h"
#include "common/unique_fd.h"

namespace hyperframes {

// Between SIGTERM and SIGKILL when whoever asked did not say (a plain kill, not StopWorker).
constexpr absl::Duration kDefaultGrace = absl::Seconds(10);
// What a worker leaves running behind itself gets this long after its end.
constexpr absl::Duration kLeftoverGrace = absl::Milliseconds(500);

class Shim {
 public:
  explicit Shim(std::string directory) : directory_(std::move(directory)) {}

  // Runs the worker of spec.json to its end; call once, in a process of its own with one thread.
  // OK when the end is recorded, whatever it was. AlreadyExists: a shim lives here, or the worker
  // has run before. Other statuses: nothing was started, or the record could not be written.
  absl::Status Run();

 private:
  absl::Status Prepare();
  absl::Status StartWorker();
  [[noreturn]] void BecomeWorker(int output, int failure);
  absl::Status Serve(BoundedLog* log);
  void HandleSignals();
  void BeginStop(absl::Duration grace);
  void Reap();
  void EndStragglers();
  absl::Status Record(WorkerState state);

  const std::string directory_;
  WorkerSpec spec_;
  WorkerStatus status_;
  UniqueFd lock_;
  UniqueFd signals_;
  UniqueFd output_;            // What the worker and its children print.
  bool worker_ended_ = false;  // Reaped; its children may live on.
  bool children_left_ = true;  // Something is still to be reaped.
  bool killing_ = false;       // Past the grace.
  absl::Time kill_at_ = absl::InfiniteFuture();
};

// Sends `signal` to exactly that process and to no later owner of its pid; `value` travels with
// SIGTERM to a shim as the grace in milliseconds. False: it has ended.
bool SignalProcess(const ProcessIdentity& process, int signal, int value = -1);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SUPERVISOR_SHIM_H_
