#include "agent/telemetry/counters_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "agent/telemetry/counters_page.h"

namespace hyperframes {
namespace {

// Far above what a run can reach, and far below what overflows when workers are summed.
constexpr int64_t kMostBelieved = int64_t{1} << 55;

int64_t Value(const std::atomic<int64_t>& counter) {
  return std::clamp<int64_t>(counter.load(std::memory_order_relaxed), 0, kMostBelieved);
}

double Seconds(const std::atomic<int64_t>& nanoseconds) {
  return static_cast<double>(Value(nanoseconds)) * 1e-9;
}

}  // namespace

void CountersReading::Add(const CountersReading& other) {
  steps += other.steps;
  for (int d = 0; d < kDirectionCount; ++d) {
    for (int t = 0; t < kTierCount; ++t) {
      bytes_copied[d][t] += other.bytes_copied[d][t];
      copies[d][t] += other.copies[d][t];
      copy_busy_s[d][t] += other.copy_busy_s[d][t];
    }
  }
  exposed_wait_s += other.exposed_wait_s;
  recompute_s += other.recompute_s;
  overflow_to_host += other.overflow_to_host;
  overflow_to_keep += other.overflow_to_keep;
  activation_bytes += other.activation_bytes;
  activation_peak_bytes += other.activation_peak_bytes;
  stash_bytes += other.stash_bytes;
  reload_bytes += other.reload_bytes;
  for (int t = 0; t < kTierCount; ++t) frame_bytes[t] += other.frame_bytes[t];
  predicted_peak_bytes += other.predicted_peak_bytes;
  for (const auto& [stage, seen] : other.stages) {
    StageReading& sum = stages[stage];
    sum.micro_batches += seen.micro_batches;
    sum.run_s += seen.run_s;
    sum.wait_s += seen.wait_s;
  }
}

void CountersReading::DropGauges() {
  activation_bytes = activation_peak_bytes = stash_bytes = reload_bytes = predicted_peak_bytes = 0;
  std::fill(std::begin(frame_bytes), std::end(frame_bytes), 0);
}

absl::StatusOr<CountersReading> ReadCounters(int descriptor) {
  struct stat file;
  // Only shared memory answers to F_GET_SEALS: reading from a pipe or a FUSE file could block.
  if (fcntl(descriptor, F_GET_SEALS) < 0 || fstat(descriptor, &file) != 0 ||
      file.st_size != kCountersPageBytes) {
    return absl::InvalidArgumentError("counters page: not one page of shared memory");
  }
  alignas(CountersPage) char buffer[kCountersPageBytes];
  if (pread(descriptor, buffer, sizeof(buffer), 0) != static_cast<ssize_t>(sizeof(buffer))) {
    return absl::InvalidArgumentError("counters page: shorter than it said");
  }
  const auto& page = *reinterpret_cast<const CountersPage*>(buffer);
  if (page.magic.load() != kCountersMagic) {
    return absl::InvalidArgumentError("counters page: wrong magic");
  }
  if (page.version.load() != kCountersVersion) {
    return absl::FailedPreconditionError(
        "counters page: version " + std::to_string(page.version.load()) + ", this agent reads 1");
  }
  CountersReading reading;
  reading.steps = Value(page.steps);
  for (int d = 0; d < kDirectionCount; ++d) {
    for (int t = 0; t < kTierCount; ++t) {
      reading.bytes_copied[d][t] = Value(page.bytes_copied[d][t]);
      reading.copies[d][t] = Value(page.copies[d][t]);
      reading.copy_busy_s[d][t] = Seconds(page.copy_busy_ns[d][t]);
    }
  }
  reading.exposed_wait_s = Seconds(page.exposed_wait_ns);
  reading.recompute_s = Seconds(page.recompute_ns);
  reading.overflow_to_host = Value(page.overflow_to_host);
  reading.overflow_to_keep = Value(page.overflow_to_keep);
  reading.activation_bytes = Value(page.activation_bytes);
  reading.activation_peak_bytes = Value(page.activation_peak_bytes);
  reading.stash_bytes = Value(page.stash_bytes);
  reading.reload_bytes = Value(page.reload_bytes);
  for (int t = 0; t < kTierCount; ++t) reading.frame_bytes[t] = Value(page.frame_bytes[t]);
  reading.predicted_peak_bytes = Value(page.predicted_peak_bytes);
  for (int stage = 0; stage < kMostStages; ++stage) {
    const int64_t count = Value(page.micro_batches[stage]);
    if (count == 0) continue;
    reading.stages[stage] = {count, Seconds(page.micro_batch_run_ns[stage]),
                             Seconds(page.micro_batch_wait_ns[stage])};
  }
  return reading;
}

}  // namespace hyperframes
