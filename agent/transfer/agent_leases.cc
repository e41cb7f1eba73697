#include "agent/transfer/agent_leases.h"

#include <glog/logging.h>

#include <utility>

#include "common/status_macros.h"

namespace hyperframes {

absl::StatusOr<std::unique_ptr<AgentLeases>> AgentLeases::Connect(const std::string& socket_path,
                                                                  Device* device) {
  DescriptorClientOptions options;
  options.socket_path = socket_path;
  HF_ASSIGN_OR_RETURN(auto agent, DescriptorClient::Connect(std::move(options)));
  return std::unique_ptr<AgentLeases>(new AgentLeases(std::move(agent), device));
}

absl::StatusOr<std::unique_ptr<Memory>> AgentLeases::Open(const std::string& lease_id,
                                                          const std::string& token) {
  HF_ASSIGN_OR_RETURN(const MappedLease mapped, agent_->MapLease(lease_id, token));
  absl::StatusOr<std::unique_ptr<Memory>> memory = device_->Map(mapped.descriptor, mapped.bytes);
  absl::Status usable = memory.ok() ? (*memory)->WaitUntilUsable() : memory.status();
  if (usable.ok()) return memory;
  if (memory.ok()) memory->reset();
  Return(lease_id);
  return usable;
}

void AgentLeases::Return(const std::string& lease_id) {
  const absl::Status returned = agent_->ReturnLease(lease_id);
  if (!returned.ok()) LOG(WARNING) << "lease " << lease_id << ": " << returned;
}

}  // namespace hyperframes
