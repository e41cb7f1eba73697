#include "client/c/counters_writer.h"

#include <new>
#include <string>
#include <utility>

#include "agent/device/host/host_memory.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

void Store(std::atomic<int64_t>* to, int64_t value) { to->store(value, std::memory_order_relaxed); }

// base + stats for what is monotonic; gauges are left to the caller.
EngineStats Sum(const EngineStats& base, EngineStats stats) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    stats.bytes_out[tier] += base.bytes_out[tier];
    stats.bytes_in[tier] += base.bytes_in[tier];
    stats.puts[tier] += base.puts[tier];
    stats.fetches[tier] += base.fetches[tier];
    for (int direction = 0; direction < kDirectionCount; ++direction) {
      stats.copy_busy[direction][tier] += base.copy_busy[direction][tier];
    }
  }
  stats.overflow_to_host += base.overflow_to_host;
  stats.overflow_to_keep += base.overflow_to_keep;
  stats.exposed_wait += base.exposed_wait;
  return stats;
}

void ClearGauges(EngineStats* stats) {
  stats->stash_bytes = 0;
  stats->reload_bytes = 0;
  for (int tier = 0; tier < kTierCount; ++tier) {
    stats->arena_used[tier] = 0;
    stats->arena_capacity[tier] = 0;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CountersWriter>> CountersWriter::Create() {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Memory> memory,
                      HostMemory::Create("hyperframes-counters", kCountersPageBytes, nullptr));
  return std::unique_ptr<CountersWriter>(new CountersWriter(std::move(memory)));
}

CountersWriter::CountersWriter(std::unique_ptr<Memory> memory)
    : memory_(std::move(memory)), page_(new (memory_->data()) CountersPage()) {
  page_->version.store(kCountersVersion, std::memory_order_relaxed);
  // Last: a reader that sees the magic sees a page that is all there.
  page_->magic.store(kCountersMagic, std::memory_order_release);
}

void CountersWriter::Publish(const EngineStats& stats) {
  MutexLock lock(&mutex_);
  Write(stats);
}

void CountersWriter::Retire(const EngineStats& stats) {
  MutexLock lock(&mutex_);
  base_ = Sum(base_, stats);
  ClearGauges(&base_);
  EngineStats nothing;
  Write(nothing);
}

void CountersWriter::Write(const EngineStats& stats) {
  const EngineStats total = Sum(base_, stats);
  constexpr int kOutward = static_cast<int>(Direction::kOut);
  constexpr int kInward = static_cast<int>(Direction::kIn);
  for (int tier = 0; tier < kTierCount; ++tier) {
    Store(&page_->bytes_copied[kOutward][tier], total.bytes_out[tier]);
    Store(&page_->bytes_copied[kInward][tier], total.bytes_in[tier]);
    Store(&page_->copies[kOutward][tier], total.puts[tier]);
    Store(&page_->copies[kInward][tier], total.fetches[tier]);
    for (int direction = 0; direction < kDirectionCount; ++direction) {
      Store(&page_->copy_busy_ns[direction][tier],
            absl::ToInt64Nanoseconds(total.copy_busy[direction][tier]));
    }
    Store(&page_->arena_used[tier], stats.arena_used[tier]);
    Store(&page_->arena_capacity[tier], stats.arena_capacity[tier]);
    Store(&page_->frame_bytes[tier], stats.arena_used[tier]);
  }
  Store(&page_->exposed_wait_ns, absl::ToInt64Nanoseconds(total.exposed_wait));
  Store(&page_->overflow_to_host, total.overflow_to_host);
  Store(&page_->overflow_to_keep, total.overflow_to_keep);
  Store(&page_->stash_bytes, stats.stash_bytes);
  Store(&page_->reload_bytes, stats.reload_bytes);
}

void CountersWriter::Report(const FrontReport& report) {
  Store(&page_->steps, report.steps);
  Store(&page_->activation_bytes, report.activation_bytes);
  Store(&page_->activation_peak_bytes, report.activation_peak_bytes);
  Store(&page_->recompute_ns, report.recompute_ns);
  Store(&page_->predicted_peak_bytes, report.predicted_peak_bytes);
}

absl::Status CountersWriter::ReportMicroBatches(int stage, int64_t count, int64_t run_ns,
                                                int64_t wait_ns) {
  if (stage < 0 || stage >= kMostStages) {
    return absl::InvalidArgumentError("stage " + std::to_string(stage) + ": 0 to " +
                                      std::to_string(kMostStages - 1));
  }
  Store(&page_->micro_batches[stage], count);
  Store(&page_->micro_batch_run_ns[stage], run_ns);
  Store(&page_->micro_batch_wait_ns[stage], wait_ns);
  return absl::OkStatus();
}

}  // namespace hyperframes
