// Which dialect client, agent and coordinator speak, and which release this is.
#ifndef HYPERFRAMES_COMMON_PROTOCOL_VERSION_H_
#define HYPERFRAMES_COMMON_PROTOCOL_VERSION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace hyperframes {

constexpr uint32_t kProtocolMajor = 1;
constexpr uint32_t kProtocolMinor = 0;
// "0.1.0". From build_defs/version.bzl; its definition is generated.
extern const char kReleaseVersion[];

// OK for the same major and at most one minor apart. Otherwise FailedPrecondition naming `peer`
// ("agent node7"), both versions and which side to upgrade. 0.0 is a peer that sent no version.
absl::Status CheckProtocol(uint32_t major, uint32_t minor, const std::string& peer);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_PROTOCOL_VERSION_H_
