// What an agent tells of its node's way to other nodes.
#ifndef HYPERFRAMES_AGENT_SERVICE_NETWORK_PROFILE_H_
#define HYPERFRAMES_AGENT_SERVICE_NETWORK_PROFILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hyperframes/v1/membership.pb.h"

namespace hyperframes {

// "Lend and borrow nothing across nodes", the default: frames travel unencrypted, so an operator
// has to want it.
constexpr const char* kNoNetwork = "off";

// `bandwidth` is "off", bytes/s ("20GB"), or "auto": what the fastest network that is up promises
// by its name in `sysfs`, which is nobody's measurement. That one also says of what kind
// the network is, whoever gave the figure. `real`: with real GPUs, of which
// hftransfer keeps a context and its communicators. InvalidArgument: none of the three; NotFound:
// "auto", and no network is up.
absl::StatusOr<v1::NetworkProfile> DescribeNetwork(const std::string& bandwidth,
                                                   absl::Duration latency, bool real,
                                                   const std::string& sysfs = "/sys");

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_NETWORK_PROFILE_H_
