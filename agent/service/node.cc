#include "agent/service/node.h"

#include <glog/logging.h>
#include <signal.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "agent/service/worker_environment.h"
#include "agent/supervisor/shim.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// Between SIGTERM and SIGKILL for a worker that kept a revoked lease: its time is over already.
constexpr absl::Duration kOverdueGrace = absl::Seconds(1);
// For an hftransfer to end the one lease, before it is killed with all the others that it serves.
constexpr absl::Duration kOverdueTransferGrace = absl::Seconds(5);

const char* StateLabel(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kRunning:
      return "running";
    case WorkerState::kStopping:
      return "stopping";
    case WorkerState::kExited:
      return "exited";
  }
  return "exited";
}

}  // namespace

Node::Node(NodeOptions options, std::unique_ptr<GpuMachine> machine)
    : options_(std::move(options)), machine_(std::move(machine)) {}

Node::~Node() {
  server_.reset();
  attached_.reset();
  supervisor_.reset();
}

absl::StatusOr<std::unique_ptr<Node>> Node::Create(NodeOptions options,
                                                   std::unique_ptr<GpuMachine> machine) {
  std::unique_ptr<Node> node(new Node(std::move(options), std::move(machine)));
  const NodeOptions& o = node->options_;
  std::vector<LendingDevice> lending;
  for (Device* const device : node->machine_->gpus()) {
    if (o.reserve_bytes > device->description().total_bytes) {
      return absl::InvalidArgumentError("--reserve-bytes " + FormatBytes(o.reserve_bytes) +
                                        " is more than " + device->description().uuid + " has (" +
                                        FormatBytes(device->description().total_bytes) + ")");
    }
    lending.push_back({device, o.reserve_bytes});
    const absl::Status usable = node->machine_->CheckUsable(*device);
    if (!usable.ok()) LOG(WARNING) << "not used: " << usable.message();
  }
  if (node->machine_->host() != nullptr) lending.push_back({node->machine_->host(), 0});
  HF_ASSIGN_OR_RETURN(node->records_, LeaseRecords::Open(o.run_directory + "/leases"));
  node->leases_ = std::make_unique<LeaseTable>(lending, MonotonicClock(), node->records_.get());
  // The socket's lock comes before anything is adopted: two agents on one run directory must not
  // both believe that its workers are theirs. Nobody can ask before Restore, for a client that
  // connects meanwhile waits in the backlog until the server runs.
  DescriptorServerOptions server;
  server.socket_path = o.run_directory + "/agent.sock";
  HF_ASSIGN_OR_RETURN(auto listener, ListeningSocket::Open(server.socket_path));
  node->leases_->Restore(node->records_->Load());
  node->ports_.Restore(o.run_directory + "/ports");
  TransferChildrenOptions transfers;
  transfers.program = o.transfer_path.empty()
                          ? o.shim_path.substr(0, o.shim_path.rfind('/') + 1) + "hftransfer"
                          : o.transfer_path;
  transfers.backend = node->machine_->backend();
  transfers.agent_socket = server.socket_path;
  transfers.bandwidth = o.network_bandwidth;
  transfers.on_traffic = [table = node->network()](const TrafficWindow& window) {
    table->Add(window);
  };
  node->transfers_ = std::make_unique<TransferChildren>(std::move(transfers));
  SupervisorOptions supervisor;
  supervisor.run_directory = o.run_directory;
  supervisor.shim_path = o.shim_path;
  supervisor.most_ended_kept = o.most_ended_kept;
  supervisor.ended_kept_for = o.ended_kept_for;
  HF_ASSIGN_OR_RETURN(node->supervisor_,
                      Supervisor::Create(supervisor, [raw = node.get()](const WorkerInfo& info) {
                        raw->WorkerEnded(info);
                      }));
  AttachedWorkersOptions attached;
  attached.directory = o.run_directory + "/attached";
  HF_ASSIGN_OR_RETURN(node->attached_,
                      AttachedWorkers::Create(attached, [raw = node.get()](const WorkerInfo& info) {
                        raw->WorkerEnded(info);
                      }));
  HF_ASSIGN_OR_RETURN(node->server_, DescriptorServer::Start(server, std::move(listener),
                                                             node->leases_.get(), node.get()));
  return node;
}

absl::StatusOr<WorkerInfo> Node::StartWorker(const WorkerSpec& spec) {
  HF_ASSIGN_OR_RETURN(WorkerInfo info, supervisor_->Start(spec));
  ports_.Started(spec.job_id);
  // The age tells a first call from a repeated one well enough for a statistic.
  if (RestartsOf(spec.worker_id) > 0 && info.status.state == WorkerState::kStarting) {
    MutexLock lock(&mutex_);
    ++restarts_;
  }
  return info;
}

std::vector<WorkerInfo> Node::Workers() const {
  std::vector<WorkerInfo> workers = supervisor_->Workers();
  for (WorkerInfo& info : attached_->Workers()) workers.push_back(std::move(info));
  return workers;
}

absl::StatusOr<WorkerInfo> Node::StopWorker(const std::string& worker_id, absl::Duration grace) {
  absl::StatusOr<WorkerInfo> info = attached_->Terminate(worker_id);
  return absl::IsNotFound(info.status()) ? supervisor_->Stop(worker_id, grace) : info;
}

absl::Status Node::DropWorker(const std::string& worker_id, absl::Duration grace) {
  const absl::Status dropped =
      attached_->Detach(worker_id, /*exit_code=*/-1, "the coordinator does not know its job")
          .status();
  return absl::IsNotFound(dropped) ? supervisor_->Stop(worker_id, grace).status() : dropped;
}

void Node::Acknowledge(const std::vector<std::string>& worker_ids) {
  supervisor_->Acknowledge(worker_ids);
  attached_->Acknowledge(worker_ids);
  for (const std::string& worker_id : worker_ids) counters_.Forget(worker_id);
}

void Node::WorkerEnded(const WorkerInfo& info) {
  const bool clean = info.status.exit_code == 0 && info.status.term_signal == 0;
  const int released =
      leases_->ReleaseRank(info.spec.job_id, info.spec.rank, clean ? "job_end" : "worker_died");
  counters_.Detach(info.spec.worker_id);
  LOG(INFO) << "worker " << info.spec.worker_id << " ended"
            << (clean ? "" : ": " + info.status.message) << "; " << released << " leases released";
  MutexLock lock(&mutex_);
  ++exits_[clean ? "ok" : info.status.term_signal != 0 ? "signal" : "exit_code"];
}

void Node::WorkerConnected(const std::string& worker_id, const ProcessIdentity& process,
                           UniqueFd counters) {
  VLOG(1) << "process " << process.pid << " of worker '" << worker_id << "' connected";
  if (!counters.valid() || worker_id.empty()) return;
  // Only workers of this node count, each for the GPU that it was given and not one it names.
  for (const WorkerInfo& info : Workers()) {
    if (info.spec.worker_id != worker_id) continue;
    // The socket's word on who it is: an attached worker is that process and no other.
    if (info.attached && !(info.status.worker == process)) {
      LOG(WARNING) << "process " << process.pid << " is not worker " << worker_id;
      return;
    }
    const absl::Status attached = counters_.Attach(worker_id, info.spec.gpu, std::move(counters));
    if (!attached.ok()) LOG(WARNING) << "worker " << worker_id << ": " << attached.message();
    return;
  }
}

void Node::WorkerDisconnected(const std::string& worker_id, const ProcessIdentity& process) {
  // Its counters stay until the worker has ended: it may connect again with the same page.
  VLOG(1) << "process " << process.pid << " of worker '" << worker_id << "' disconnected";
}

absl::StatusOr<LeaseRecord> Node::RevokeLease(const std::string& lease_id, absl::Duration grace) {
  HF_ASSIGN_OR_RETURN(LeaseRecord lease, leases_->Revoke(lease_id, grace));
  // A holder that is not connected now is asked when it is again.
  if (lease.state == LeaseState::kRevoking) server_->SendRevocation(lease_id);
  return lease;
}

bool Node::EndTransfer(const LeaseRecord& lease) {
  {
    MutexLock lock(&mutex_);
    const auto [asked, first] = overdue_.emplace(lease.lease_id, MonotonicClock()->Now());
    if (!first) return MonotonicClock()->Now() - asked->second >= kOverdueTransferGrace;
  }
  LOG(WARNING) << "lease " << lease.lease_id << ", which was revoked, is taken from rank "
               << lease.rank << " of job " << lease.job_id << " on another node";
  server_->SendRevocation(lease.lease_id, /*overdue=*/true);
  return false;
}

void Node::LeaseOverdue(const LeaseRecord& lease) {
  for (const WorkerInfo& info : supervisor_->Workers()) {
    if (info.spec.job_id != lease.job_id || info.spec.rank != lease.rank ||
        info.status.state == WorkerState::kExited) {
      continue;
    }
    if (info.status.state != WorkerState::kStopping) {
      LOG(WARNING) << "worker " << info.spec.worker_id << " is ended: it has not returned lease "
                   << lease.lease_id << ", which was revoked";
    }
    supervisor_
        ->Stop(info.spec.worker_id, kOverdueGrace, "revoked_lease_not_returned: " + lease.lease_id)
        .IgnoreError();
    return;
  }
  if (transfers_->Serves(lease.lease_id) && !EndTransfer(lease)) return;
  // Another agent's worker: its own agent tells of the signal.
  if (SignalProcess(lease.holder, SIGKILL)) {
    LOG(WARNING) << "process " << lease.holder.pid << " is killed: it has not returned lease "
                 << lease.lease_id << ", which was revoked";
  }
}

absl::StatusOr<UniqueFd> Node::StartTransfer(const std::string& worker_id, const std::string& gpu) {
  // A worker of this node has the GPU that it was given, whatever it says.
  for (const WorkerInfo& info : Workers()) {
    if (info.spec.worker_id == worker_id) return transfers_->StartNear(info.spec.gpu);
  }
  return transfers_->StartNear(gpu);
}

std::vector<DeviceSample> Node::Devices() const {
  std::vector<DeviceSample> samples;
  for (const DeviceUsage& usage : leases_->Usage()) {
    DeviceSample sample;
    sample.uuid = usage.device;
    sample.is_host =
        machine_->host() != nullptr && usage.device == machine_->host()->description().uuid;
    sample.total = usage.total_bytes;
    sample.reserved = usage.reserve_bytes;
    sample.lent = usage.lent_bytes;
    sample.largest_free = usage.largest_free;
    samples.push_back(std::move(sample));
  }
  return samples;
}

void Node::Housekeep() {
  ports_.Tick([this](const std::string& job_id) { return supervisor_->Running(job_id); });
  std::set<std::string> live;
  for (const LeaseRecord& lease : leases_->Report()) {
    if (lease.state != LeaseState::kReleased) live.insert(lease.lease_id);
  }
  transfers_->Tick(live);
  std::map<std::string, CountersReading> by_gpu = counters_.ByGpu();
  const std::vector<DeviceSample> devices = Devices();
  MutexLock lock(&mutex_);
  for (auto it = overdue_.begin(); it != overdue_.end();) {
    it = live.count(it->first) > 0 ? std::next(it) : overdue_.erase(it);
  }
  for (const DeviceSample& device : devices) {
    double& high = water_level_high_[device.uuid];
    high = std::max(high, WaterLevel(device, by_gpu[device.uuid]));
  }
}

NodeSample Node::Sample() {
  Housekeep();
  NodeSample sample;
  sample.devices = Devices();
  for (const DeviceSample& device : sample.devices) {
    if (!device.is_host) sample.counters_by_gpu[device.uuid];  // Zeros rather than a gap.
  }
  for (auto& [gpu, reading] : counters_.ByGpu()) sample.counters_by_gpu[gpu] = reading;
  sample.leases_reclaimed = leases_->released_by_reason();
  for (const WorkerState state : {WorkerState::kStarting, WorkerState::kRunning,
                                  WorkerState::kStopping, WorkerState::kExited}) {
    sample.workers_by_state[StateLabel(state)] = 0;
  }
  for (const WorkerInfo& info : Workers()) {
    ++sample.workers_by_state[StateLabel(info.status.state)];
    if (info.status.state == WorkerState::kExited) continue;
    sample.jobs.push_back({info.spec.job_id, info.spec.worker_id, info.spec.gpu});
  }
  sample.network_kind = options_.network_kind;
  sample.network_promised = options_.network_promised;
  for (const NetworkFigure& figure : network_.Figures()) {
    sample.network_measured[figure.node] = figure.bytes_per_second;
  }
  const DescriptorServer::Counters channel = server_->counters();
  sample.mappings_opened = channel.mappings_opened;
  sample.mappings_closed = channel.mappings_closed;
  MutexLock lock(&mutex_);
  sample.worker_exits = exits_;
  sample.worker_restarts = restarts_;
  sample.water_level_high = water_level_high_;
  return sample;
}

}  // namespace hyperframes
