// What hfagent can be told on its command line, in the environment or in a file.
#ifndef HYPERFRAMES_AGENT_SERVICE_AGENT_FLAGS_H_
#define HYPERFRAMES_AGENT_SERVICE_AGENT_FLAGS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/service/node.h"
#include "common/config.h"
#include "common/units.h"

namespace hyperframes {

struct AgentFlags {
  std::string node = "local";
  std::string coordinator = "127.0.0.1:7461";
  std::string listen_address = "127.0.0.1:7463";
  std::string http_address = "127.0.0.1:7464";
  std::string run_directory = "/tmp/hyperframes";
  std::string simulated_gpus = "1 x 1GiB";
  std::string shim_path;
  Bytes host_bytes = kGiB;
  Bytes peer_bandwidth = 0;
  Bytes host_bandwidth = 0;
  Bytes reserve_bytes = 0;
  int64_t keep_ended_workers = 256;
  absl::Duration keep_ended_for = absl::Hours(7 * 24);
};

// Declares every flag with its help; the defaults are those of `flags`, which outlives `config`.
void AddAgentFlags(AgentFlags* flags, Config* config);

// The node that the flags describe. InvalidArgument names the part of --simulated-gpus that cannot
// be read.
absl::StatusOr<NodeOptions> NodeOptionsOf(const AgentFlags& flags);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_AGENT_FLAGS_H_
