#include "agent/device/host/host_machine.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/host_limits.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr size_t kLongestText = 16384;
constexpr int kMostDevices = 64;
constexpr const char* kAccepted =
    "accepted: \"uuid=SIZE[@key=value,key=value];...\" with the keys peer, host, "
    "peer-promise, host-promise, collective-promise, latency, slowdown and copy-slowdown, or "
    "\"2 x 1GiB\", or \"1GiB,512MiB\"";

// What was wrong with one token; the token is cut so that a message stays bounded.
absl::Status BadToken(absl::string_view token, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("host devices: cannot read '", token.substr(0, 64),
                                                 "': ", why, "; ", kAccepted));
}

std::string Trimmed(absl::string_view text) {
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::StatusOr<Bytes> ParseSize(const std::string& token) {
  const absl::StatusOr<Bytes> bytes = ParseBytes(token);
  if (!bytes.ok()) return BadToken(token, bytes.status().message());
  if (*bytes == 0) return BadToken(token, "a device needs more than 0 bytes");
  return *bytes;
}

absl::StatusOr<Bytes> ParseSpeed(const std::string& token, absl::string_view value) {
  const absl::StatusOr<Bytes> bytes = ParseBytes(std::string(absl::StripSuffix(value, "/s")));
  if (!bytes.ok()) return BadToken(token, bytes.status().message());
  return *bytes;
}

// One "key=value" behind the '@'.
absl::Status ParseProperty(const std::string& token, HostDeviceOptions* device) {
  const std::vector<std::string> parts = absl::StrSplit(token, absl::MaxSplits('=', 1));
  if (parts.size() != 2) return BadToken(token, "expected key=value");
  const std::string key = Trimmed(parts[0]);
  const std::string value = Trimmed(parts[1]);
  if (key == "peer") {
    HF_ASSIGN_OR_RETURN(device->peer_bandwidth, ParseSpeed(token, value));
  } else if (key == "host") {
    HF_ASSIGN_OR_RETURN(device->host_bandwidth, ParseSpeed(token, value));
  } else if (key == "peer-promise") {
    HF_ASSIGN_OR_RETURN(device->peer_promise, ParseSpeed(token, value));
  } else if (key == "host-promise") {
    HF_ASSIGN_OR_RETURN(device->host_promise, ParseSpeed(token, value));
  } else if (key == "collective-promise") {
    HF_ASSIGN_OR_RETURN(device->collective_promise, ParseSpeed(token, value));
  } else if (key == "latency") {
    const absl::StatusOr<absl::Duration> latency = ParseDuration(value);
    if (!latency.ok()) return BadToken(token, latency.status().message());
    device->latency = *latency;
  } else if (key == "slowdown") {
    double slowdown = 0;
    if (!absl::SimpleAtod(value, &slowdown) || !(slowdown >= 1 && slowdown <= 1000)) {
      return BadToken(token, "a slowdown is a number from 1 to 1000");
    }
    device->compute_slowdown = slowdown;
  } else if (key == "copy-slowdown") {
    double share = 0;
    if (!absl::SimpleAtod(value, &share) || !(share >= 0 && share <= 1)) {
      return BadToken(token, "a copy-slowdown is a share from 0 to 1");
    }
    device->copy_slowdown = share;
  } else {
    return BadToken(token, absl::StrCat("there is no key '", key.substr(0, 32), "'"));
  }
  return absl::OkStatus();
}

// SIZE[@key=value,...] into everything but the uuid.
absl::StatusOr<HostDeviceOptions> ParseDescription(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('@', 1));
  HostDeviceOptions device;
  HF_ASSIGN_OR_RETURN(device.total_bytes, ParseSize(Trimmed(parts[0])));
  if (parts.size() == 1) return device;
  for (absl::string_view property : absl::StrSplit(parts[1], ',')) {
    HF_RETURN_IF_ERROR(ParseProperty(Trimmed(property), &device));
  }
  return device;
}

std::string SimulatedUuid(const std::string& node, size_t index) {
  return absl::StrCat("SIM-", node, "-", index);
}

// "2 x 1GiB@..." or "1GiB,512MiB": no token names a uuid.
absl::StatusOr<std::vector<HostDeviceOptions>> ParseShort(const std::string& text,
                                                          const std::string& node) {
  std::vector<HostDeviceOptions> devices;
  const std::string before_at = text.substr(0, text.find('@'));
  const size_t times = before_at.find_first_of("xX");
  if (times != std::string::npos) {
    const std::string count_text = Trimmed(text.substr(0, times));
    int count = 0;
    if (!absl::SimpleAtoi(count_text, &count) || count < 1 || count > kMostDevices) {
      return BadToken(count_text, absl::StrCat("expected a count from 1 to ", kMostDevices));
    }
    HF_ASSIGN_OR_RETURN(const HostDeviceOptions device, ParseDescription(text.substr(times + 1)));
    devices.assign(count, device);
  } else if (text.find('@') != std::string::npos) {
    HF_ASSIGN_OR_RETURN(const HostDeviceOptions device, ParseDescription(text));
    devices.push_back(device);
  } else {
    for (absl::string_view size : absl::StrSplit(text, ',')) {
      HF_ASSIGN_OR_RETURN(const HostDeviceOptions device, ParseDescription(Trimmed(size)));
      devices.push_back(device);
    }
  }
  for (size_t i = 0; i < devices.size(); ++i) devices[i].uuid = SimulatedUuid(node, i);
  return devices;
}

absl::Status CheckUuid(const std::string& uuid) {
  if (uuid.empty() || uuid.size() > 128) return BadToken(uuid, "a uuid has 1 to 128 characters");
  for (const char c : uuid) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != ':' && c != '.') {
      return BadToken(uuid, "a uuid holds letters, digits and - _ : . only");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDistinct(const std::vector<HostDeviceOptions>& devices) {
  std::set<std::string> seen;
  for (const HostDeviceOptions& device : devices) {
    if (!seen.insert(device.uuid).second) return BadToken(device.uuid, "this uuid comes twice");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<HostDeviceOptions>> ParseHostDevices(const std::string& text,
                                                                const std::string& node) {
  if (text.size() > kLongestText) return BadToken(text, "it is longer than 16 KiB");
  std::string trimmed = Trimmed(text);
  if (absl::EndsWith(trimmed, ";")) trimmed.pop_back();
  if (trimmed.empty()) return BadToken(text, "it is empty");
  const bool names_uuids = trimmed.substr(0, trimmed.find('@')).find('=') != std::string::npos;
  if (!names_uuids && trimmed.find(';') == std::string::npos) return ParseShort(trimmed, node);

  std::vector<HostDeviceOptions> devices;
  for (absl::string_view piece : absl::StrSplit(trimmed, ';')) {
    const std::string token = Trimmed(piece);
    const size_t equals = token.find('=');
    if (equals == std::string::npos || equals > token.find('@')) {
      return BadToken(token, "expected uuid=SIZE");
    }
    const std::string uuid = Trimmed(token.substr(0, equals));
    HF_RETURN_IF_ERROR(CheckUuid(uuid));
    HF_ASSIGN_OR_RETURN(HostDeviceOptions device, ParseDescription(token.substr(equals + 1)));
    device.uuid = uuid;
    devices.push_back(std::move(device));
  }
  if (devices.size() > kMostDevices) {
    return BadToken(text, absl::StrCat("it names ", devices.size(), " devices, at most ",
                                       kMostDevices, " are simulated"));
  }
  HF_RETURN_IF_ERROR(CheckDistinct(devices));
  return devices;
}

std::string FormatHostDevices(const std::vector<HostDeviceOptions>& devices) {
  std::vector<std::string> pieces;
  pieces.reserve(devices.size());
  for (const HostDeviceOptions& device : devices) {
    // Plain byte counts: FormatBytes rounds, and the reader must get the very same device.
    pieces.push_back(absl::StrCat(device.uuid, "=", device.total_bytes,
                                  "@peer=", device.peer_bandwidth, ",host=", device.host_bandwidth,
                                  ",latency=", absl::ToInt64Nanoseconds(device.latency), "ns",
                                  absl::StrFormat(",slowdown=%.17g", device.compute_slowdown)));
    if (device.copy_slowdown > 0) {
      absl::StrAppend(&pieces.back(),
                      absl::StrFormat(",copy-slowdown=%.17g", device.copy_slowdown));
    }
    if (device.peer_promise > 0) {
      absl::StrAppend(&pieces.back(), ",peer-promise=", device.peer_promise);
    }
    if (device.host_promise > 0) {
      absl::StrAppend(&pieces.back(), ",host-promise=", device.host_promise);
    }
    if (device.collective_promise > 0) {
      absl::StrAppend(&pieces.back(), ",collective-promise=", device.collective_promise);
    }
  }
  return absl::StrJoin(pieces, ";");
}

Bytes HalfOfAvailableMemory() {
  HostLimits limits = ReadHostLimits();
  // A kernel or container without MemAvailable: free pages are the careful answer.
  if (!limits.available.has_value()) {
    limits.available = Bytes{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  }
  return RoomOf(limits).bytes / 2;
}

absl::StatusOr<std::unique_ptr<HostMachine>> HostMachine::Create(HostMachineOptions options) {
  if (options.host_bytes < -1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host_bytes is ", options.host_bytes, "; give 0 for none, or -1 for half of what is free"));
  }
  if (options.devices.empty()) {
    HostDeviceOptions device;
    device.uuid = SimulatedUuid(options.node, 0);
    device.total_bytes = HalfOfAvailableMemory();
    options.devices.push_back(std::move(device));
  }
  HostDeviceOptions host;
  host.uuid = absl::StrCat("host:", options.node);
  host.total_bytes = options.host_bytes >= 0 ? options.host_bytes : HalfOfAvailableMemory();
  std::vector<HostDeviceOptions> all = options.devices;
  all.push_back(host);
  HF_RETURN_IF_ERROR(CheckDistinct(all));

  std::unique_ptr<HostMachine> machine(new HostMachine());
  for (HostDeviceOptions& device : options.devices) {
    HF_ASSIGN_OR_RETURN(std::unique_ptr<HostDevice> created, HostDevice::Create(std::move(device)));
    machine->gpus_.push_back(created.get());
    machine->devices_.push_back(std::move(created));
  }
  HF_ASSIGN_OR_RETURN(machine->host_, HostDevice::Create(std::move(host)));
  return machine;
}

int HostMachine::IndexOf(const Device& gpu) const {
  const auto found = std::find(gpus_.begin(), gpus_.end(), &gpu);
  return found == gpus_.end() ? -1 : static_cast<int>(found - gpus_.begin());
}

std::map<std::string, std::string> HostMachine::WorkerVariables(
    const Device& own, const std::vector<std::string>& /*visible*/) const {
  std::vector<HostDeviceOptions> described;
  for (const auto& device : devices_) {
    if (device.get() == &own) described.push_back(device->options());
  }
  return {{"HYPERFRAMES_BACKEND", backend()},
          {"HYPERFRAMES_HOST_DEVICES", FormatHostDevices(described)}};
}

}  // namespace hyperframes
