#include "agent/device/host/host_device.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/device/host/host_event.h"
#include "agent/device/host/host_stream.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr double kLargestSlowdown = 1000;

uint64_t NextSerial() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1);
}

int64_t ThreadCpuNs() {
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return int64_t{used.tv_sec} * 1000000000 + used.tv_nsec;
}

void SleepNs(int64_t ns) {
  timespec left = {static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
  }
}

// Processor time up to which a thread has paid for its slowdown, on the device it last used.
struct ComputeAccount {
  uint64_t device_serial = 0;
  int64_t paid_until_cpu_ns = 0;
  int64_t paid_until_copied_ns = 0;
};
thread_local ComputeAccount compute_account;

absl::Status CheckOptions(const HostDeviceOptions& options) {
  if (options.uuid.empty()) {
    return absl::InvalidArgumentError("a simulated device needs a uuid, such as SIM-local-0");
  }
  const auto refuse = [&options](const char* field, const std::string& value,
                                 const char* accepted) {
    return absl::InvalidArgumentError(absl::StrCat("device ", options.uuid.substr(0, 64), ": ",
                                                   field, " is ", value, "; it must be ",
                                                   accepted));
  };
  if (options.total_bytes < 0) {
    return refuse("total_bytes", absl::StrCat(options.total_bytes), "0 or more");
  }
  if (options.peer_bandwidth < 0) {
    return refuse("peer bandwidth", absl::StrCat(options.peer_bandwidth), "0 or more");
  }
  if (options.host_bandwidth < 0) {
    return refuse("host bandwidth", absl::StrCat(options.host_bandwidth), "0 or more");
  }
  if (options.latency < absl::ZeroDuration() || options.latency == absl::InfiniteDuration()) {
    return refuse("latency", absl::FormatDuration(options.latency), "finite and 0 or more");
  }
  if (!(options.compute_slowdown >= 1 && options.compute_slowdown <= kLargestSlowdown)) {
    return refuse("slowdown", absl::StrCat(options.compute_slowdown), "from 1 to 1000");
  }
  if (!(options.copy_slowdown >= 0 && options.copy_slowdown <= 1)) {
    return refuse("copy slowdown", absl::StrCat(options.copy_slowdown), "from 0 to 1");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostDevice>> HostDevice::Create(HostDeviceOptions options) {
  HF_RETURN_IF_ERROR(CheckOptions(options));
  if (options.name.empty()) options.name = options.uuid;
  return std::unique_ptr<HostDevice>(new HostDevice(std::move(options)));
}

HostDevice::HostDevice(HostDeviceOptions options)
    : options_(std::move(options)),
      description_{options_.uuid, options_.name, "host", options_.total_bytes},
      budget_(std::make_shared<MemoryBudget>(options_.total_bytes)),
      copied_ns_(std::make_shared<std::atomic<int64_t>>(0)),
      serial_(NextSerial()) {}

absl::StatusOr<std::unique_ptr<Memory>> HostDevice::Allocate(Bytes bytes) {
  if (bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot allocate ", bytes, " bytes on ",
                                                   options_.uuid, ": ask for at least 1"));
  }
  Bytes free = 0;
  if (!budget_->Take(bytes, &free)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "device ", options_.uuid, ": ", FormatBytes(bytes), " (", bytes, " bytes) asked, ",
        FormatBytes(free), " (", free, " bytes) free of ", FormatBytes(options_.total_bytes)));
  }
  absl::StatusOr<std::unique_ptr<Memory>> memory =
      HostMemory::Create(options_.uuid, bytes, budget_);
  if (!memory.ok()) budget_->GiveBack(bytes);
  return memory;
}

absl::StatusOr<std::unique_ptr<Memory>> HostDevice::Map(int descriptor, Bytes bytes) {
  return HostMemory::Map(descriptor, bytes);
}

absl::StatusOr<std::unique_ptr<Memory>> HostDevice::Adopt(int descriptor, Bytes bytes) {
  // It is there whatever this device's limit is by now; within the limit it counts.
  Bytes free = 0;
  const bool counts = bytes > 0 && budget_->Take(bytes, &free);
  absl::StatusOr<std::unique_ptr<Memory>> memory =
      HostMemory::Map(descriptor, bytes, counts ? budget_ : nullptr);
  if (!memory.ok() && counts) budget_->GiveBack(bytes);
  return memory;
}

absl::StatusOr<std::unique_ptr<Stream>> HostDevice::CreateStream(Direction /*direction*/,
                                                                 Tier tier) {
  if (tier == Tier::kKeep) {
    return absl::InvalidArgumentError("tier keep has no stream: kept storages are not copied");
  }
  PathSpeed speed;
  speed.bandwidth = tier == Tier::kPeer ? options_.peer_bandwidth : options_.host_bandwidth;
  speed.latency = options_.latency;
  speed.busy_ns = copied_ns_;
  return std::unique_ptr<Stream>(new HostStream(speed));
}

absl::StatusOr<std::shared_ptr<const Event>> HostDevice::RecordCompute(void* /*compute_stream*/) {
  PayForCompute();
  return HostEvent::AlreadyDone();
}

absl::Status HostDevice::ComputeWait(void* /*compute_stream*/, const Event& event) {
  event.Synchronize();
  return absl::OkStatus();
}

void HostDevice::PayForCompute() {
  if (options_.compute_slowdown <= 1 && options_.copy_slowdown <= 0) return;
  const int64_t used_ns = ThreadCpuNs();
  const int64_t copied_ns = copied_ns_->load(std::memory_order_relaxed);
  if (compute_account.device_serial == serial_) {
    const auto took_ns = static_cast<double>(used_ns - compute_account.paid_until_cpu_ns);
    const auto copies_ns = static_cast<double>(copied_ns - compute_account.paid_until_copied_ns);
    const double beside_ns = std::min(took_ns * options_.compute_slowdown, copies_ns);
    SleepNs(static_cast<int64_t>(took_ns * (options_.compute_slowdown - 1) +
                                 beside_ns * options_.copy_slowdown));
  }
  compute_account = {serial_, used_ns, copied_ns};
}

}  // namespace hyperframes
