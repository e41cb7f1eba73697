// What one process can use: the devices that it sees, the agents that it has leases from, and its
// counters page. Shared by the engines opened on it.
#ifndef HYPERFRAMES_CLIENT_C_MACHINE_H_
#define HYPERFRAMES_CLIENT_C_MACHINE_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/arena/descriptor_client.h"
#include "agent/device/device.h"
#include "agent/device/host/host_machine.h"
#include "client/c/counters_writer.h"
#include "common/mutex.h"

namespace hyperframes {

// Thread-safe.
class Machine {
 public:
  // See hf_machine_open. InvalidArgument names the field; Unimplemented: a backend that this build
  // does not have.
  static absl::StatusOr<std::shared_ptr<Machine>> Open(const std::string& options_json);

  // The device with that UUID. NotFound names those that there are.
  absl::StatusOr<Device*> Find(const std::string& uuid) const;

  // The GPU that computes: the one with that UUID, or, for an empty one, HYPERFRAMES_GPU, else the
  // only one. InvalidArgument: there are several to choose from.
  absl::StatusOr<Device*> ComputeDevice(const std::string& uuid) const;

  // {"devices": [DeviceProfile...], "links": [LinkProfile...]}; measures the links, so it takes
  // tens of milliseconds.
  absl::StatusOr<std::string> Describe();

  // The connection to the agent behind `socket_path`, made at the first call and kept as long as
  // this machine: an agent takes a closed connection for a dead worker. A restarting agent is
  // waited for, ten seconds at most. Codes as DescriptorClient::Connect.
  absl::StatusOr<DescriptorClient*> Agent(const std::string& socket_path) HF_EXCLUDES(mutex_);

  // Hands the counters page to the agent that started this process (HYPERFRAMES_WORKER_SOCKET); OK
  // without one.
  absl::Status ShareCounters() HF_EXCLUDES(mutex_);

  CountersWriter* counters() { return counters_.get(); }

 private:
  Machine(std::string node, std::unique_ptr<HostMachine> host,
          std::unique_ptr<CountersWriter> counters);

  const std::string node_;
  const std::unique_ptr<HostMachine> host_;
  const std::unique_ptr<CountersWriter> counters_;
  Mutex mutex_;
  std::map<std::string, std::unique_ptr<DescriptorClient>> agents_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

// The handle of the C ABI.
struct hf_machine {
  std::shared_ptr<hyperframes::Machine> machine;
};

#endif  // HYPERFRAMES_CLIENT_C_MACHINE_H_
