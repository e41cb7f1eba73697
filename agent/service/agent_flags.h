// What hfagent can be told on its command line, in the environment or in a file.
#ifndef HYPERFRAMES_AGENT_SERVICE_AGENT_FLAGS_H_
#define HYPERFRAMES_AGENT_SERVICE_AGENT_FLAGS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "agent/device/gpu_machine.h"
#include "agent/service/link_survey.h"
#include "agent/service/network_profile.h"
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
  std::string backend = "auto";
  std::string simulated_gpus;  // Empty: "1 x 1GiB" where there are no real ones.
  std::string shim_path;
  std::string probe_path;
  absl::optional<Bytes> host_bytes;
  Bytes peer_bandwidth = 0;
  Bytes host_bandwidth = 0;
  std::string network_bandwidth = kNoNetwork;
  Bytes simulated_network_bandwidth = 0;
  absl::Duration network_latency = absl::Microseconds(50);
  absl::optional<Bytes> reserve_bytes;
  int64_t keep_ended_workers = 256;
  absl::Duration keep_ended_for = absl::Hours(7 * 24);
};

// Declares every flag with its help; the defaults are those of `flags`, which outlives `config`.
void AddAgentFlags(AgentFlags* flags, Config* config);

// The machine whose memory the flags lend. "auto" is the CUDA backend where a driver sees GPUs and
// none are simulated. InvalidArgument: an unknown backend, simulated GPUs beside real ones, or a
// part of --simulated-gpus that cannot be read. What OpenLentGpus says where it was asked for,
// or where a driver is there and does not start: real GPUs are never replaced by simulated ones.
absl::StatusOr<std::unique_ptr<GpuMachine>> OpenMachine(const AgentFlags& flags);

// The node that lends it.
NodeOptions NodeOptionsOf(const AgentFlags& flags, const GpuMachine& machine);

// How it learns its links.
LinkSurveyOptions SurveyOptionsOf(const AgentFlags& flags);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_AGENT_FLAGS_H_
