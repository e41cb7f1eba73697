// What one process can use: the devices that it sees, the agents that it has leases from, and its
// counters page. Shared by the engines opened on it.
#ifndef HYPERFRAMES_CLIENT_C_MACHINE_H_
#define HYPERFRAMES_CLIENT_C_MACHINE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/arena/descriptor_client.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/device.h"
#include "agent/device/host/host_machine.h"
#include "client/c/counters_writer.h"
#include "client/doctor/facts.h"
#include "common/mutex.h"
#include "hyperframes/v1/plan.pb.h"

namespace hyperframes {

// Thread-safe.
class Machine {
 public:
  // See hf_machine_open. InvalidArgument names the field; Unimplemented: a backend that this build
  // does not have; NotFound and FailedPrecondition as CudaMachine::Open.
  static absl::StatusOr<std::shared_ptr<Machine>> Open(const std::string& options_json);

  // The device with that UUID. NotFound names those that there are.
  absl::StatusOr<Device*> Find(const std::string& uuid) const;

  // The GPU that computes: the one with that UUID, or, for an empty one, the one that the machine
  // was opened for ("gpu_index"), else HYPERFRAMES_GPU, else the only one. InvalidArgument: there
  // are several to choose from.
  absl::StatusOr<Device*> ComputeDevice(const std::string& uuid) const;

  // {"devices": [DeviceProfile...], "links": [LinkProfile...], "unfit_links": [...]} as in
  // hyperframes.h; measures the links, so it takes tens of milliseconds. On CUDA only those of the
  // GPU that computes: measuring the others would make contexts on GPUs that this program does not
  // use.
  absl::StatusOr<std::string> Describe();

  // See hf_judge_collectives. Reads NVML on CUDA, which takes milliseconds.
  absl::StatusOr<std::string> JudgeCollectives(const std::string& measured_json) const;

  // The connection to the agent behind `socket_path`, made at the first call and kept as long as
  // this machine: an agent takes a closed connection for a dead worker. A restarting agent is
  // waited for, ten seconds at most. Codes as DescriptorClient::Connect.
  absl::StatusOr<DescriptorClient*> Agent(const std::string& socket_path) HF_EXCLUDES(mutex_);

  // Hands the counters page to the agent that started this process (HYPERFRAMES_WORKER_SOCKET); OK
  // without one.
  absl::Status ShareCounters() HF_EXCLUDES(mutex_);

  CountersWriter* counters() { return counters_.get(); }

 private:
  struct Options;
  static absl::StatusOr<Options> ReadOptions(const std::string& options_json);
  Machine() = default;
  absl::Status OpenDevices(Options options);
  std::string KnownUuids() const;
  v1::DeviceProfile Profile(const Device& device) const;
  // The path from the GPU `from` into memory of `to`; never fails: that there is none, or no room
  // to measure it with, stands in it.
  doctor::PathFacts MeasurePath(Device* from, Device* to, absl::Duration time_limit) const;
  // What the slowest of them promises; 0: one of them does not, or is not of this machine.
  double SimulatedCollectivePromise(const std::vector<std::string>& gpus) const;
  v1::LinkProfile Link(const doctor::PathFacts& path) const;
  absl::StatusOr<std::vector<doctor::PathFacts>> MeasurePaths();

  std::string node_;
  std::string host_note_;  // Why less host memory is lent than was asked for; empty: it is not.
  std::unique_ptr<HostMachine> simulated_;  // One of the two.
  std::unique_ptr<CudaMachine> cuda_;
  std::vector<Device*> gpus_;
  Device* host_ = nullptr;
  Device* compute_ = nullptr;  // Null: not chosen when the machine was opened.
  std::unique_ptr<CountersWriter> counters_;
  Mutex mutex_;
  std::map<std::string, std::unique_ptr<DescriptorClient>> agents_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

// The handle of the C ABI.
struct hf_machine {
  std::shared_ptr<hyperframes::Machine> machine;
};

#endif  // HYPERFRAMES_CLIENT_C_MACHINE_H_
