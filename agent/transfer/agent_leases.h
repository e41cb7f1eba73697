// Leases of this node's agent for hftransfer's far side: whoever shows a peer's token to the agent
// gets what the agent gives for it, and nothing else is ever opened.
#ifndef HYPERFRAMES_AGENT_TRANSFER_AGENT_LEASES_H_
#define HYPERFRAMES_AGENT_TRANSFER_AGENT_LEASES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/arena/descriptor_client.h"
#include "agent/device/device.h"
#include "agent/transfer/far_server.h"

namespace hyperframes {

class AgentLeases final : public LeaseSource {
 public:
  // Connects to the agent behind `socket_path`. `device` maps the leases and outlives this. Codes
  // as DescriptorClient::Connect.
  static absl::StatusOr<std::unique_ptr<AgentLeases>> Connect(const std::string& socket_path,
                                                              Device* device);

  absl::StatusOr<std::unique_ptr<Memory>> Open(const std::string& lease_id,
                                               const std::string& token) override;
  void Return(const std::string& lease_id) override;
  bool TakeRevocation(std::string* lease_id) override { return agent_->TakeRevocation(lease_id); }

 private:
  AgentLeases(std::unique_ptr<DescriptorClient> agent, Device* device)
      : agent_(std::move(agent)), device_(device) {}

  const std::unique_ptr<DescriptorClient> agent_;
  Device* const device_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_AGENT_LEASES_H_
