// The options_json of hf_engine_open.
#ifndef HYPERFRAMES_CLIENT_C_ENGINE_OPTIONS_H_
#define HYPERFRAMES_CLIENT_C_ENGINE_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/engine/frame_engine.h"

namespace hyperframes {

struct LeaseOptions {
  std::string device;
  Tier tier = Tier::kHost;
  Bytes bytes = 0;
  // All three for a lease of an agent, none for memory of this process.
  std::string lease_id;
  std::string token;
  std::string worker_socket;
  // Both for a lease on another node: its name, and the address of hftransfer there. worker_socket
  // is then that of this node's own agent, which starts this process's hftransfer.
  std::string node;
  std::string transfer_address;
  Bytes staging_bytes = 0;  // With it: what the plan counts on this GPU; 0: chosen by the lease.
};

struct EngineOptions {
  std::string gpu;
  FrameEngineOptions engine;
  bool measures_only = false;  // Its copies are no training's: the agent need not know of it.
  std::vector<LeaseOptions> leases;
};

// InvalidArgument names the field: unknown, of the wrong kind, a lease without bytes or device, an
// unknown tier or direction, or a token without its lease_id and worker_socket.
absl::StatusOr<EngineOptions> ParseEngineOptions(const std::string& json);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_C_ENGINE_OPTIONS_H_
