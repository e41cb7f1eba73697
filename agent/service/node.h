// Room: agent/service. Everything that one node has and lends, put together: devices, leases, the
// descriptor channel, workers, ports, counters. It must not know gRPC; agent_service converts.
#ifndef HYPERFRAMES_AGENT_SERVICE_NODE_H_
#define HYPERFRAMES_AGENT_SERVICE_NODE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/arena/descriptor_server.h"
#include "agent/arena/lease_records.h"
#include "agent/arena/lease_table.h"
#include "agent/device/gpu_machine.h"
#include "agent/supervisor/attached_workers.h"
#include "agent/supervisor/port_holder.h"
#include "agent/supervisor/supervisor.h"
#include "agent/telemetry/exporter.h"
#include "agent/telemetry/worker_counters.h"
#include "agent/transfer/network_table.h"
#include "agent/transfer/transfer_children.h"
#include "common/mutex.h"

namespace hyperframes {

struct NodeOptions {
  std::string name;
  std::string run_directory;
  std::string transfer_path;  // hftransfer; empty: beside hfshim.
  std::string shim_path;
  Bytes reserve_bytes = 0;  // Of each GPU; never lent.
  // What the network of simulated GPUs' nodes carries each way; 0: as fast as memory.
  Bytes network_bandwidth = 0;
  // What --network-bandwidth promises, and of what kind; empty: frames stay on the node.
  double network_promised = 0;
  std::string network_kind;
  // See SupervisorOptions.
  size_t most_ended_kept = SupervisorOptions().most_ended_kept;
  absl::Duration ended_kept_for = SupervisorOptions().ended_kept_for;
};

// Thread-safe. Destroying it ends no worker and no lease: the next agent adopts them.
class Node final : public DescriptorServerObserver {
 public:
  // Adopts what an earlier agent of this run directory left. InvalidArgument: contradicting
  // options. Other statuses as of the parts.
  static absl::StatusOr<std::unique_ptr<Node>> Create(NodeOptions options,
                                                      std::unique_ptr<GpuMachine> machine);
  ~Node() override;

  const NodeOptions& options() const { return options_; }
  const std::string& worker_socket() const { return server_->socket_path(); }
  GpuMachine* machine() { return machine_.get(); }
  LeaseTable* leases() { return leases_.get(); }
  Supervisor* supervisor() { return supervisor_.get(); }
  AttachedWorkers* attached() { return attached_.get(); }
  // Those that this node started, and those that attached.
  std::vector<WorkerInfo> Workers() const;
  PortHolder* ports() { return &ports_; }
  TransferChildren* transfers() { return transfers_.get(); }
  NetworkTable* network() { return &network_; }
  const WorkerCounters& counters() const { return counters_; }
  // As Supervisor::Acknowledge, and lets go of their counters.
  void Acknowledge(const std::vector<std::string>& worker_ids);

  // As Supervisor::Start, and counts restarts.
  absl::StatusOr<WorkerInfo> StartWorker(const WorkerSpec& spec) HF_EXCLUDES(mutex_);
  // As Supervisor::Stop; of an attached one AttachedWorkers::Terminate.
  absl::StatusOr<WorkerInfo> StopWorker(const std::string& worker_id, absl::Duration grace);
  // Nobody knows it any more: it is stopped, or, attached, no longer watched. NotFound.
  absl::Status DropWorker(const std::string& worker_id, absl::Duration grace);
  // As LeaseTable::Revoke, and asks the holder.
  absl::StatusOr<LeaseRecord> RevokeLease(const std::string& lease_id, absl::Duration grace);
  // Gives back what nobody needs any more, and follows water levels. Call about every second.
  void Housekeep() HF_EXCLUDES(mutex_);
  // For the exporter; what concerns the coordinator is left for the caller.
  NodeSample Sample() HF_EXCLUDES(mutex_);

  void WorkerConnected(const std::string& worker_id, const ProcessIdentity& process,
                       UniqueFd counters) override;
  void WorkerDisconnected(const std::string& worker_id, const ProcessIdentity& process) override;
  void LeaseOverdue(const LeaseRecord& lease) override;
  absl::StatusOr<UniqueFd> StartTransfer(const std::string& worker_id,
                                         const std::string& gpu) override;

 private:
  Node(NodeOptions options, std::unique_ptr<GpuMachine> machine);
  void WorkerEnded(const WorkerInfo& info) HF_EXCLUDES(mutex_);
  // Has the hftransfer that holds an overdue lease end it. True: it had time enough and did not.
  bool EndTransfer(const LeaseRecord& lease) HF_EXCLUDES(mutex_);
  std::vector<DeviceSample> Devices() const;

  const NodeOptions options_;
  PortHolder ports_{MonotonicClock()};
  WorkerCounters counters_;
  NetworkTable network_{MonotonicClock()};
  const std::unique_ptr<GpuMachine> machine_;
  std::unique_ptr<LeaseRecords> records_;
  std::unique_ptr<LeaseTable> leases_;
  Mutex mutex_;
  std::map<std::string, int64_t> exits_ HF_GUARDED_BY(mutex_);
  std::map<std::string, double> water_level_high_ HF_GUARDED_BY(mutex_);
  int64_t restarts_ HF_GUARDED_BY(mutex_) = 0;
  std::map<std::string, absl::Time> overdue_ HF_GUARDED_BY(mutex_);  // When they were ended.
  std::unique_ptr<TransferChildren> transfers_;
  // Last, so that their threads end before what they call into.
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<AttachedWorkers> attached_;
  std::unique_ptr<DescriptorServer> server_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_NODE_H_
