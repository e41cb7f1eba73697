// The hftransfer processes of one agent: for each of its devices at most one that serves other
// nodes, for as long as such a lease exists, and one for each of its workers that uses other nodes,
// which ends with its worker. They outlive an agent that is killed, as its workers do.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TRANSFER_CHILDREN_H_
#define HYPERFRAMES_AGENT_TRANSFER_TRANSFER_CHILDREN_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/transfer/traffic_meter.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace hyperframes {

struct TransferChildrenOptions {
  std::string program;                                // Path of hftransfer.
  std::string backend;                                // "host" or "cuda".
  std::string agent_socket;                           // Where the serving ones map leases.
  absl::Duration deadline = absl::Seconds(10);        // Of a silent peer.
  absl::Duration start_deadline = absl::Seconds(20);  // Until a serving one is ready.
  Bytes bandwidth = 0;  // Each worker's, to other nodes, on simulated GPUs; 0: as fast as memory.
  size_t most_near = 256;
  std::function<void(const TrafficWindow&)> on_traffic;  // May be null. Told by Tick.
};

// Thread-safe.
class TransferChildren {
 public:
  explicit TransferChildren(TransferChildrenOptions options) : options_(std::move(options)) {}
  // The far ones end once their last peer has gone, the near ones with their workers.
  ~TransferChildren();

  // Where the hftransfer of `device` listens, which serves the lease from now on and is started
  // when there is none. Unavailable: it does not start. Blocks for the start.
  absl::StatusOr<std::string> FarAddress(const std::string& device, const std::string& lease_id)
      HF_EXCLUDES(start_mutex_, mutex_);

  // Starts one for a worker that computes on `gpu`, and returns the worker's end of their socket.
  // Unavailable, ResourceExhausted. Does not wait for it.
  absl::StatusOr<UniqueFd> StartNear(const std::string& gpu) HF_EXCLUDES(mutex_);

  // Ends the far ones none of whose leases is in `live`, the node's leases, forgets those that have
  // ended, and passes on what the near ones tell of their traffic. Call about every second.
  void Tick(const std::set<std::string>& live) HF_EXCLUDES(mutex_);

  // True while one of the serving ones was asked for this lease: it passes revocations on.
  bool Serves(const std::string& lease_id) const HF_EXCLUDES(mutex_);

  // Kills the far one of `device`, as a node's failure would. For tests. False: there is none.
  bool KillFar(const std::string& device) HF_EXCLUDES(mutex_);
  int far_children() const HF_EXCLUDES(mutex_);
  int near_children() const HF_EXCLUDES(mutex_);

 private:
  struct Far {
    pid_t pid = -1;
    UniqueFd lifeline;
    std::string address;
    std::set<std::string> leases;
    bool asked_for = false;  // Since the last Tick, whose list may be older than the lease.
  };

  struct Near {
    UniqueFd traffic;  // The end that is read.
    std::string unfinished;
  };

  void ReadTraffic(Near* near, std::vector<TrafficWindow>* windows) HF_REQUIRES(mutex_);
  void EndIdle(const std::set<std::string>& live, std::vector<TrafficWindow>* windows)
      HF_EXCLUDES(mutex_);
  absl::StatusOr<pid_t> Start(const std::vector<std::string>& arguments, int inherited, int output);
  absl::StatusOr<Far> StartFar(const std::string& device);

  const TransferChildrenOptions options_;
  Mutex start_mutex_ HF_ACQUIRED_BEFORE(mutex_);  // Held while a far one starts.
  mutable Mutex mutex_;
  std::map<std::string, Far> far_ HF_GUARDED_BY(mutex_);  // By device.
  std::map<pid_t, Near> near_ HF_GUARDED_BY(mutex_);
  std::set<pid_t> ending_ HF_GUARDED_BY(mutex_);  // Let go, not yet reaped.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TRANSFER_CHILDREN_H_
