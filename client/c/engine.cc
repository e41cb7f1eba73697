#include "client/c/engine.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/device/borrowed_memory.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kPublishInterval = absl::Milliseconds(100);
constexpr Bytes kLeastStaging = kMiB;  // For frames of other nodes, on this process's device.

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(std::shared_ptr<Machine> machine,
                                                     const std::string& options_json) {
  HF_ASSIGN_OR_RETURN(const EngineOptions options, ParseEngineOptions(options_json));
  // Built first, so that its destructor returns the leases mapped so far when a later one fails.
  std::unique_ptr<Engine> engine(new Engine(std::move(machine)));
  HF_RETURN_IF_ERROR(engine->Start(options));
  return engine;
}

absl::Status Engine::Start(const EngineOptions& options) {
  HF_ASSIGN_OR_RETURN(Device * device, machine_->ComputeDevice(options.gpu));
  std::vector<EngineArena> arenas;
  for (const LeaseOptions& lease : options.leases) {
    HF_ASSIGN_OR_RETURN(EngineArena arena, OpenArena(device, lease));
    arenas.push_back(std::move(arena));
  }
  // All are being pinned at once by now. Waited for here, so that no step ever does.
  for (const EngineArena& arena : arenas) HF_RETURN_IF_ERROR(arena.memory->WaitUntilUsable());
  HF_ASSIGN_OR_RETURN(frames_, FrameEngine::Create(device, std::move(arenas), options.engine));
  // The agent takes the end of this connection for the worker's.
  if (agent_leases_.empty() && !options.measures_only) {
    // Without leases the agent is wanted for the counters alone, and a run does not depend on
    // those.
    const absl::Status shared = machine_->ShareCounters();
    if (!shared.ok()) LOG(WARNING) << "counters are not exported: " << shared;
  }
  Publish();
  return absl::OkStatus();
}

absl::StatusOr<EngineArena> Engine::OpenArena(Device* device, const LeaseOptions& lease) {
  EngineArena arena;
  arena.tier = lease.tier;
  if (lease.tier == Tier::kPeer) arena.gpu = lease.device;
  if (!lease.token.empty()) {
    arena.lease_id = lease.lease_id;
    HF_ASSIGN_OR_RETURN(arena.memory, MapLease(device, lease));
    return arena;
  }
  arena.lease_id = absl::StrCat("local:", lease.device);
  HF_ASSIGN_OR_RETURN(Device * lender, machine_->Find(lease.device));
  HF_ASSIGN_OR_RETURN(arena.memory, BorrowMemory(device, lender, lease.bytes));
  return arena;
}

absl::StatusOr<std::unique_ptr<Memory>> Engine::OpenRemote(Device* device,
                                                           const LeaseOptions& lease) {
  if (transfer_ == nullptr) {
    HF_ASSIGN_OR_RETURN(DescriptorClient * agent, machine_->Agent(lease.worker_socket));
    HF_ASSIGN_OR_RETURN(UniqueFd socket, agent->StartTransfer(device->description().uuid));
    transfer_ = TransferChannel::Adopt(std::move(socket));
  }
  RemoteLease remote;
  remote.lease_id = lease.lease_id;
  remote.token = lease.token;
  remote.node = lease.node;
  remote.address = lease.transfer_address;
  remote.bytes = lease.bytes;
  const Bytes fits = std::min(remote.staging_bytes, std::max(lease.bytes / 4, kLeastStaging));
  remote.staging_bytes = lease.staging_bytes > 0 ? lease.staging_bytes : fits;
  return transfer_->Open(device, remote);
}

absl::StatusOr<std::unique_ptr<Memory>> Engine::MapLease(Device* device,
                                                         const LeaseOptions& lease) {
  if (!lease.transfer_address.empty()) return OpenRemote(device, lease);
  HF_ASSIGN_OR_RETURN(DescriptorClient * agent, machine_->Agent(lease.worker_socket));
  HF_ASSIGN_OR_RETURN(const MappedLease mapped, agent->MapLease(lease.lease_id, lease.token));
  UniqueFd descriptor(mapped.descriptor);
  agent_leases_.push_back({agent, lease.lease_id});
  if (mapped.bytes < lease.bytes) {
    return absl::FailedPreconditionError(absl::StrCat("lease ", lease.lease_id, " on ",
                                                      lease.device, " has ", mapped.bytes,
                                                      " bytes; the plan counts on ", lease.bytes));
  }
  return device->Map(descriptor.release(), mapped.bytes);
}

Engine::~Engine() {
  if (frames_ != nullptr) {
    machine_->counters()->Retire(frames_->stats());
    frames_.reset();  // Waits for copies and unmaps: only then may the agent have its bytes back.
  }
  for (const AgentLease& lease : agent_leases_) {
    const absl::Status returned = lease.agent->ReturnLease(lease.lease_id);
    if (!returned.ok()) LOG(WARNING) << "lease " << lease.lease_id << ": " << returned;
  }
}

void Engine::Publish() {
  next_publish_ns_.store(absl::ToUnixNanos(clock_->Now() + kPublishInterval),
                         std::memory_order_relaxed);
  machine_->counters()->Publish(frames_->stats());
}

void Engine::PublishSometimes() {
  if (absl::ToUnixNanos(clock_->Now()) >= next_publish_ns_.load(std::memory_order_relaxed)) {
    Publish();
  }
}

std::vector<StorageHandle> Engine::TakeReleasable(Bytes limit, void* compute_stream,
                                                  int64_t capacity) {
  const std::vector<StorageHandle> fresh = frames_->TakeReleasable(limit, compute_stream);
  MutexLock lock(&mutex_);
  releasable_.insert(releasable_.end(), fresh.begin(), fresh.end());
  const auto count = std::min<int64_t>(capacity, static_cast<int64_t>(releasable_.size()));
  std::vector<StorageHandle> taken(releasable_.begin(), releasable_.begin() + count);
  releasable_.erase(releasable_.begin(), releasable_.begin() + count);
  return taken;
}

bool Engine::TakeRevocation(std::string* lease_id) {
  if (transfer_ != nullptr && transfer_->TakeRevocation(lease_id)) return true;
  std::set<DescriptorClient*> agents;
  for (const AgentLease& lease : agent_leases_) agents.insert(lease.agent);
  return std::any_of(agents.begin(), agents.end(), [lease_id](DescriptorClient* agent) {
    return agent->TakeRevocation(lease_id);
  });
}

}  // namespace hyperframes
