// What is known of every node: its description, its state, its incarnation.
#ifndef HYPERFRAMES_COORDINATOR_MEMBERSHIP_NODE_REGISTRY_H_
#define HYPERFRAMES_COORDINATOR_MEMBERSHIP_NODE_REGISTRY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/membership/heartbeat_ledger.h"
#include "coordinator/membership/measured_networks.h"
#include "hyperframes/v1/coordinator.pb.h"
#include "hyperframes/v1/membership.pb.h"

namespace hyperframes {

// A node as the registry holds it. `info.heartbeat_age_s` and `info.network_measured` are filled in
// when it is read.
struct Node {
  v1::NodeInfo info;
  std::string worker_socket;
  absl::Time offline_since;  // With OFFLINE.
};

class NodeRegistry {
 public:
  struct Options {
    absl::Duration suspected_after = absl::Seconds(3);
    absl::Duration offline_after = absl::Seconds(10);
    absl::Duration tick_interval =
        absl::Milliseconds(250);  // How often Tick is meant to be called.
    size_t max_nodes = 10000;
  };

  // `clock` and `ledger` must outlive the registry.
  NodeRegistry(Options options, const Clock* clock, HeartbeatLedger* ledger);

  // Enters a node, or a new incarnation of it, as ALIVE. InvalidArgument names the unreadable
  // field. Aborted: an incarnation that was followed by a newer one, which the message names.
  // AlreadyExists: another agent (another host, or another socket on this one) is ALIVE under that
  // name. ResourceExhausted: max_nodes. Thread-safe, like all here.
  absl::Status Register(const v1::RegisterRequest& request);

  // Replaces GPUs, leases and workers of a node, and adds what it measured. False: not known,
  // register again. Aborted and InvalidArgument as Register.
  absl::StatusOr<bool> Report(const v1::ReportRequest& request);

  // Moves states by the ledger's silences. When it notices that it was itself not called for longer
  // than expected, it trusts no silence that includes that gap: nodes become SUSPECTED at most, and
  // OFFLINE only after a further offline_after - suspected_after of silence that it watched.
  void Tick();

  // By name, with heartbeat ages.
  std::vector<Node> List() const;
  // NotFound: no node of that name ever registered.
  absl::StatusOr<Node> Find(const std::string& name) const;
  // Runs `visit` for every node in place, with the registry's lock held: cheap and short, please.
  void Visit(const std::function<void(const Node&)>& visit) const;

  // How many times Tick noticed a stall of its own.
  int64_t stalls() const;

 private:
  struct Entry {
    Node node;
    MeasuredNetworks measured;  // Outlives an agent that restarts.
    // Incarnations that were followed by another, newest last: bounded, since a node that restarts
    // for ever must not grow without end.
    std::deque<uint64_t> superseded;
  };

  absl::Status AdmitLocked(const v1::RegisterRequest& request, Entry* entry) HF_REQUIRES(mutex_);
  void Move(Entry* entry, v1::NodeState to) HF_REQUIRES(mutex_);
  void TickEntry(Entry* entry, absl::Duration watched) HF_REQUIRES(mutex_);
  Node Snapshot(const Entry& entry) const HF_REQUIRES(mutex_);

  const Options options_;
  const Clock* const clock_;
  HeartbeatLedger* const ledger_;
  mutable Mutex mutex_;  // Before the ledger's own lock.
  std::map<std::string, Entry> entries_ HF_GUARDED_BY(mutex_);
  absl::Time last_tick_ HF_GUARDED_BY(mutex_);
  absl::Time watching_since_ HF_GUARDED_BY(mutex_);
  int64_t stalls_ HF_GUARDED_BY(mutex_) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_MEMBERSHIP_NODE_REGISTRY_H_
