// The simulated GPUs of one node and its host memory, from one line of text. Embedded mode, agents
// and workers all read that line the same way.
#ifndef HYPERFRAMES_AGENT_DEVICE_HOST_HOST_MACHINE_H_
#define HYPERFRAMES_AGENT_DEVICE_HOST_HOST_MACHINE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/device/gpu_machine.h"
#include "agent/device/host/host_device.h"
#include "common/units.h"

namespace hyperframes {

// Reads HYPERFRAMES_HOST_DEVICES:
//   "SIM-a-0=1GiB@peer=20GB,host=10GB,latency=20us,slowdown=1.5;SIM-a-1=512MiB"   or, short,
//   "2 x 1GiB", "2 x 1GiB@peer=20GB", "1GiB,512MiB": UUIDs are then SIM-<node>-0, -1, ...
// Speeds are bytes per second; 0, or the key left out, is as fast as memory. peer-promise and
// host-promise say what such links should do, and collective-promise what collectives among the
// ranks of a job should, for the pre-flight. slowdown=1.5 computes so many times slower than the
// processor, copy-slowdown=0.08 by 8 % more while copies run. InvalidArgument names the token that
// cannot be read and what is accepted there.
absl::StatusOr<std::vector<HostDeviceOptions>> ParseHostDevices(const std::string& text,
                                                                const std::string& node = "local");

// The long form that ParseHostDevices reads back to the same options (names aside).
std::string FormatHostDevices(const std::vector<HostDeviceOptions>& devices);

// Half of the memory that this process may still take: of the machine's that is free without
// swapping (MemAvailable), of its container's, of its own limits.
Bytes HalfOfAvailableMemory();

struct HostMachineOptions {
  std::string node = "local";  // Host memory is the device "host:<node>".
  // Empty: one device SIM-<node>-0, without peers, of HalfOfAvailableMemory().
  std::vector<HostDeviceOptions> devices;
  Bytes host_bytes = -1;  // Lendable host memory; 0 = none, -1 = HalfOfAvailableMemory().
};

// Thread-safe: nothing changes after Create. Outlives the engines on its devices.
class HostMachine final : public GpuMachine {
 public:
  // InvalidArgument: a device that HostDevice::Create refuses, a UUID that comes twice, or
  // host_bytes below -1.
  static absl::StatusOr<std::unique_ptr<HostMachine>> Create(HostMachineOptions options);

  // The GPUs, in the order of the options. Without host memory.
  const std::vector<std::unique_ptr<HostDevice>>& devices() const { return devices_; }

  std::string backend() const override { return "host"; }
  const std::vector<Device*>& gpus() const override { return gpus_; }
  HostDevice* host() const override { return host_.get(); }
  int IndexOf(const Device& gpu) const override;
  absl::Status CheckUsable(const Device& /*gpu*/) const override { return absl::OkStatus(); }
  bool CanReach(const Device& /*from*/, const Device& /*to*/) const override { return true; }
  std::string LinkKind(const Device& /*from*/, const Device& /*to*/) const override {
    return "simulated";
  }
  std::map<std::string, std::string> WorkerVariables(
      const Device& own, const std::vector<std::string>& visible) const override;

 private:
  HostMachine() = default;

  std::vector<std::unique_ptr<HostDevice>> devices_;
  std::vector<Device*> gpus_;
  std::unique_ptr<HostDevice> host_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_HOST_HOST_MACHINE_H_
