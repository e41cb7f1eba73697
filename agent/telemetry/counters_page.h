// One page of shared memory (memfd) into which a worker writes its counters, and from which the
// agent's exporter reads. No lock and no message in a training step. Plain 64-bit atomics, so a
// reader never blocks a writer; the values of one scrape may be from slightly different moments.
// Layout is append-only: `magic` and `version` guard it across versions.
#ifndef HYPERFRAMES_AGENT_TELEMETRY_COUNTERS_PAGE_H_
#define HYPERFRAMES_AGENT_TELEMETRY_COUNTERS_PAGE_H_

#include <atomic>
#include <cstdint>

#include "common/frame.h"

namespace hyperframes {

constexpr uint64_t kCountersMagic = 0x4846434f554e5431;  // "HFCOUNT1"
constexpr uint32_t kCountersVersion = 1;
constexpr int64_t kCountersPageBytes = 4096;
// Pipeline stages that a worker may count for; a model that is not cut is stage 0.
constexpr int kMostStages = 64;

struct CountersPage {
  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> version;
  // Monotonic.
  std::atomic<int64_t> steps;
  std::atomic<int64_t> bytes_copied[kDirectionCount][kTierCount];
  std::atomic<int64_t> copies[kDirectionCount][kTierCount];
  std::atomic<int64_t> copy_busy_ns[kDirectionCount][kTierCount];
  std::atomic<int64_t> exposed_wait_ns;
  std::atomic<int64_t> recompute_ns;
  std::atomic<int64_t> overflow_to_host;
  std::atomic<int64_t> overflow_to_keep;
  // Gauges, bytes.
  std::atomic<int64_t> activation_bytes;
  std::atomic<int64_t> activation_peak_bytes;  // Over the last complete step.
  std::atomic<int64_t> stash_bytes;
  std::atomic<int64_t> reload_bytes;
  std::atomic<int64_t> arena_used[kTierCount];
  std::atomic<int64_t> arena_capacity[kTierCount];
  std::atomic<int64_t> frame_bytes[kTierCount];  // Live frames by tier.
  std::atomic<int64_t> predicted_peak_bytes;
  // Monotonic, by stage: micro-batches that have run, how long they ran (a forward's begin to the
  // end of its backward) and how long they waited for their turn before it.
  std::atomic<int64_t> micro_batches[kMostStages];
  std::atomic<int64_t> micro_batch_run_ns[kMostStages];
  std::atomic<int64_t> micro_batch_wait_ns[kMostStages];
};
static_assert(sizeof(CountersPage) <= kCountersPageBytes, "the page is one page");
static_assert(std::atomic<int64_t>::is_always_lock_free, "readers must never block writers");

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TELEMETRY_COUNTERS_PAGE_H_
