#include "agent/service/network_profile.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/service/networks.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace hyperframes {
namespace {

constexpr const char* kAuto = "auto";
// A context and two communicators for each of a few leases. An allowance, not a measurement.
constexpr Bytes kTransferBytesOnCuda = kGiB;

// Of those that are up; null: none is.
const NetworkDevice* FastestOf(const std::vector<NetworkDevice>& all) {
  const NetworkDevice* fastest = nullptr;
  for (const NetworkDevice& device : all) {
    if (device.state != "ACTIVE" && device.state != "up") continue;
    if (fastest == nullptr || device.bytes_per_second > fastest->bytes_per_second) {
      fastest = &device;
    }
  }
  return fastest;
}

absl::StatusOr<NetworkDevice> FastestUp(const std::string& sysfs) {
  const std::vector<NetworkDevice> all = ReadNetworks(sysfs);
  const NetworkDevice* const fastest = FastestOf(all);
  if (fastest != nullptr && fastest->bytes_per_second > 0) return *fastest;
  return absl::NotFoundError(
      absl::StrCat("--network-bandwidth=auto: none of the ", all.size(), " networks under ", sysfs,
                   " is up and says how fast it is; give bytes/s, or 'off'"));
}

}  // namespace

absl::StatusOr<v1::NetworkProfile> DescribeNetwork(const std::string& bandwidth,
                                                   absl::Duration latency, bool real,
                                                   const std::string& sysfs) {
  v1::NetworkProfile network;
  if (bandwidth == kNoNetwork) return network;
  network.set_latency_s(absl::ToDoubleSeconds(latency));
  network.set_transfer_bytes(real ? kTransferBytesOnCuda : 0);
  if (bandwidth == kAuto) {
    HF_ASSIGN_OR_RETURN(const NetworkDevice fastest, FastestUp(sysfs));
    network.set_bytes_per_second(fastest.bytes_per_second);
    network.set_kind(fastest.kind);
    return network;
  }
  const absl::StatusOr<Bytes> given = ParseBytes(bandwidth);
  if (!given.ok() || *given == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--network-bandwidth=", bandwidth.substr(0, 64),
                                                   ": wanted bytes/s like 20GB, 'auto' or 'off'"));
  }
  network.set_bytes_per_second(static_cast<double>(*given));
  const std::vector<NetworkDevice> all = ReadNetworks(sysfs);
  const NetworkDevice* const fastest = FastestOf(all);
  network.set_kind(!real ? "simulated" : fastest == nullptr ? "network" : fastest->kind);
  return network;
}

}  // namespace hyperframes
