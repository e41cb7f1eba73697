#include "tests/bench/engine_way.h"

#include <time.h>

#include <utility>

#include "agent/device/borrowed_memory.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "tests/bench/report.h"

namespace hyperframes {

double Median(std::vector<double> values) { return Percentile(&values, 0.5); }

double Seconds() { return absl::ToDoubleSeconds(MonotonicClock()->Now() - absl::UnixEpoch()); }

double ThreadCpuMicroseconds() {
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) * 1e6 + static_cast<double>(used.tv_nsec) / 1e3;
}

absl::StatusOr<Way> OpenWay(Device* gpu, Device* lender, bool is_host) {
  Way way;
  way.gpu = gpu;
  way.tier = is_host ? Tier::kHost : Tier::kPeer;
  way.name = TierName(way.tier);
  const double started = Seconds();
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Memory> arena, BorrowMemory(gpu, lender, kBytes));
  HF_RETURN_IF_ERROR(arena->WaitUntilUsable());
  if (is_host) {
    way.pinning_s_per_gib =
        (Seconds() - started) * static_cast<double>(kGiB) / static_cast<double>(kBytes);
  }
  HF_ASSIGN_OR_RETURN(way.lease, BorrowMemory(gpu, lender, kBytes));
  HF_RETURN_IF_ERROR(way.lease->WaitUntilUsable());
  HF_ASSIGN_OR_RETURN(way.source, BorrowMemory(gpu, gpu, kBytes));
  HF_ASSIGN_OR_RETURN(way.back, BorrowMemory(gpu, gpu, kBytes));
  HF_ASSIGN_OR_RETURN(way.out, gpu->CreateStream(Direction::kOut, way.tier));
  HF_ASSIGN_OR_RETURN(way.in, gpu->CreateStream(Direction::kIn, way.tier));
  std::vector<EngineArena> arenas(1);
  arenas[0].lease_id = "bench";
  arenas[0].tier = way.tier;
  arenas[0].memory = std::move(arena);
  FrameEngineOptions options;
  options.stash_limit = 2 * kBytes;
  options.prefetch_limit = 2 * kBytes;
  HF_ASSIGN_OR_RETURN(way.engine, FrameEngine::Create(gpu, std::move(arenas), options));
  return way;
}

absl::Status Finish(Device* gpu) {
  HF_ASSIGN_OR_RETURN(const std::shared_ptr<const Event> event, gpu->RecordCompute(nullptr));
  event->Synchronize();
  return absl::OkStatus();
}

}  // namespace hyperframes
