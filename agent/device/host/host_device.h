// Room: agent/device/host. Simulated GPUs, and host memory as a lender: asynchronous copies on
// threads, real memory limits, settable link speed and compute slowdown. Everything but the GPU
// tests runs on it. It must not know frames, plans, leases or gRPC.
#ifndef HYPERFRAMES_AGENT_DEVICE_HOST_HOST_DEVICE_H_
#define HYPERFRAMES_AGENT_DEVICE_HOST_HOST_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/device.h"
#include "agent/device/host/host_memory.h"
#include "common/units.h"

namespace hyperframes {

struct HostDeviceOptions {
  std::string uuid;          // "SIM-<node>-<index>", or "host:<node>" for a node's host memory.
  std::string name;          // For people; the uuid when empty.
  Bytes total_bytes = 0;     // Memory limit. 0 = none can be allocated here.
  Bytes peer_bandwidth = 0;  // Bytes/s to and from peers, per direction; 0 = as fast as memory.
  Bytes host_bandwidth = 0;  // The same to and from host memory.
  // What links of this kind are said to do, for the pre-flight; 0 = nothing is said. A description
  // of a broken link promises more than it has.
  Bytes peer_promise = 0;
  Bytes host_promise = 0;
  Bytes collective_promise = 0;  // Of collectives among the ranks of a job; bus bandwidth.
  absl::Duration latency;        // Per copy, on both paths.
  // How many times slower than this machine's processor the device computes. At RecordCompute the
  // caller sleeps (slowdown - 1) times the processor time that its thread has used since the last
  // one. Not at ComputeWait: that would be counted as waiting for copies.
  double compute_slowdown = 1.0;
  // By which share compute takes longer while copies of this device run, 0.08 = 8 %; paid likewise.
  double copy_slowdown = 0;
};

class HostDevice final : public Device {
 public:
  // InvalidArgument names the field: empty uuid, a negative size, speed or latency, a slowdown
  // outside [1, 1000], or a copy slowdown outside [0, 1].
  static absl::StatusOr<std::unique_ptr<HostDevice>> Create(HostDeviceOptions options);

  const DeviceDescription& description() const override { return description_; }
  const HostDeviceOptions& options() const { return options_; }

  // InvalidArgument: bytes <= 0. Internal: the kernel refused.
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(Bytes bytes) override;
  absl::StatusOr<std::unique_ptr<Memory>> Map(int descriptor, Bytes bytes) override;
  absl::StatusOr<std::unique_ptr<Memory>> Adopt(int descriptor, Bytes bytes) override;
  // InvalidArgument: tier KEEP, which needs no copies.
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(Direction direction, Tier tier) override;
  // The program runs on the calling thread, so the event is done at once.
  absl::StatusOr<std::shared_ptr<const Event>> RecordCompute(void* compute_stream) override;
  absl::Status ComputeWait(void* compute_stream, const Event& event) override;
  Bytes free_bytes() const override { return budget_->free_bytes(); }

 private:
  explicit HostDevice(HostDeviceOptions options);
  void PayForCompute();

  const HostDeviceOptions options_;
  const DeviceDescription description_;
  const std::shared_ptr<MemoryBudget> budget_;
  const std::shared_ptr<std::atomic<int64_t>> copied_ns_;  // By all lanes.
  const uint64_t serial_;  // Tells devices of this process apart in a thread's compute account.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_HOST_HOST_DEVICE_H_
