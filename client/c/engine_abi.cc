// The hf_ functions of an engine: arguments checked, contracts of frame_engine.h passed on.
#include <algorithm>
#include <string>
#include <vector>

#include "client/c/boundary.h"
#include "client/c/engine.h"
#include "client/c/engine_stats_json.h"
#include "client/c/hyperframes.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

absl::StatusOr<Tier> TierOf(int32_t tier) {
  switch (tier) {
    case HF_TIER_KEEP:
      return Tier::kKeep;
    case HF_TIER_PEER:
      return Tier::kPeer;
    case HF_TIER_HOST:
      return Tier::kHost;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("`tier` is ", tier, "; there are 0 (keep), 1 (peer), 2 (host)"));
  }
}

absl::Status RequireCapacity(int64_t capacity) {
  if (capacity >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`capacity` is ", capacity, "; must be >= 0"));
}

}  // namespace
}  // namespace hyperframes

using hyperframes::Guarded;
using hyperframes::RequireArgument;

extern "C" {

hf_code hf_engine_open(hf_machine* machine, const char* options_json, hf_engine** engine) {
  return Guarded("hf_engine_open", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(machine, "machine"));
    HF_RETURN_IF_ERROR(RequireArgument(options_json, "options_json"));
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    HF_ASSIGN_OR_RETURN(auto opened, hyperframes::Engine::Open(machine->machine, options_json));
    *engine = new hf_engine{std::move(opened)};
    return absl::OkStatus();
  });
}

void hf_engine_close(hf_engine* engine) {
  // In a forked child the copies under way, and the leases, are the parent's.
  if (hyperframes::ForkedAfterUse()) return;
  delete engine;
}

hf_code hf_put(hf_engine* engine, int32_t micro_batch, int32_t block, int32_t ordinal,
               const void* source, int64_t bytes, int32_t tier, const char* device,
               int64_t preferred_offset, void* compute_stream, hf_placement* placement) {
  return Guarded("hf_put", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    HF_RETURN_IF_ERROR(RequireArgument(placement, "placement"));
    HF_ASSIGN_OR_RETURN(const hyperframes::Tier wanted, hyperframes::TierOf(tier));
    HF_ASSIGN_OR_RETURN(const hyperframes::Placement placed,
                        engine->engine->frames()->Put({micro_batch, block, ordinal}, source, bytes,
                                                      wanted, device == nullptr ? "" : device,
                                                      preferred_offset, compute_stream));
    placement->handle = placed.handle;
    placement->tier = static_cast<int32_t>(placed.placed);
    placement->overflow = placed.overflow_reason[0] != '\0' ? 1 : 0;
    engine->engine->PublishSometimes();
    return absl::OkStatus();
  });
}

hf_code hf_take_releasable(hf_engine* engine, int64_t limit, void* compute_stream,
                           uint64_t* handles, int64_t capacity, int64_t* count) {
  return Guarded("hf_take_releasable", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    HF_RETURN_IF_ERROR(RequireArgument(handles, "handles"));
    HF_RETURN_IF_ERROR(RequireArgument(count, "count"));
    HF_RETURN_IF_ERROR(hyperframes::RequireCapacity(capacity));
    const auto taken = engine->engine->TakeReleasable(limit, compute_stream, capacity);
    std::copy(taken.begin(), taken.end(), handles);
    *count = static_cast<int64_t>(taken.size());
    return absl::OkStatus();
  });
}

hf_code hf_fetch(hf_engine* engine, uint64_t handle, void* destination, int32_t is_prefetch,
                 void* compute_stream) {
  return Guarded("hf_fetch", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    HF_RETURN_IF_ERROR(RequireArgument(destination, "destination"));
    return engine->engine->frames()->Fetch(handle, destination, is_prefetch != 0, compute_stream);
  });
}

hf_code hf_wait(hf_engine* engine, uint64_t handle, void* compute_stream) {
  return Guarded("hf_wait", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    HF_RETURN_IF_ERROR(engine->engine->frames()->Wait(handle, compute_stream));
    engine->engine->PublishSometimes();
    return absl::OkStatus();
  });
}

hf_code hf_next_to_prefetch(hf_engine* engine, uint64_t* handles, int64_t* bytes, int64_t capacity,
                            int64_t* count) {
  return Guarded("hf_next_to_prefetch", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    HF_RETURN_IF_ERROR(RequireArgument(handles, "handles"));
    HF_RETURN_IF_ERROR(RequireArgument(bytes, "bytes"));
    HF_RETURN_IF_ERROR(RequireArgument(count, "count"));
    HF_RETURN_IF_ERROR(hyperframes::RequireCapacity(capacity));
    hyperframes::FrameEngine* frames = engine->engine->frames();
    const auto next = frames->NextToPrefetch();
    // What does not fit is named again by the next call, until it is fetched.
    *count = std::min<int64_t>(capacity, static_cast<int64_t>(next.size()));
    for (int64_t i = 0; i < *count; ++i) {
      handles[i] = next[i];
      bytes[i] = frames->SizeOf(next[i]);
    }
    return absl::OkStatus();
  });
}

hf_code hf_drop(hf_engine* engine, uint64_t handle) {
  return Guarded("hf_drop", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    engine->engine->frames()->Drop(handle);
    return absl::OkStatus();
  });
}

hf_code hf_set_limits(hf_engine* engine, int64_t stash_limit, int64_t prefetch_limit) {
  return Guarded("hf_set_limits", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    return engine->engine->frames()->SetLimits(stash_limit, prefetch_limit);
  });
}

hf_code hf_quiesce(hf_engine* engine) {
  return Guarded("hf_quiesce", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    HF_RETURN_IF_ERROR(engine->engine->frames()->Quiesce());
    engine->engine->Publish();
    return absl::OkStatus();
  });
}

hf_code hf_engine_stats(hf_engine* engine, char** stats_json) {
  return Guarded("hf_engine_stats", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    HF_RETURN_IF_ERROR(RequireArgument(stats_json, "stats_json"));
    return hyperframes::CopyOut(hyperframes::EngineStatsJson(engine->engine->frames()->stats()),
                                stats_json);
  });
}

hf_code hf_report(hf_engine* engine, int64_t steps, int64_t activation_bytes,
                  int64_t activation_peak_bytes, int64_t recompute_ns,
                  int64_t predicted_peak_bytes) {
  return Guarded("hf_report", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    hyperframes::CountersWriter::FrontReport report;
    report.steps = steps;
    report.activation_bytes = activation_bytes;
    report.activation_peak_bytes = activation_peak_bytes;
    report.recompute_ns = recompute_ns;
    report.predicted_peak_bytes = predicted_peak_bytes;
    engine->engine->machine()->counters()->Report(report);
    engine->engine->Publish();
    return absl::OkStatus();
  });
}

hf_code hf_report_micro_batches(hf_engine* engine, int32_t stage, int64_t count, int64_t run_ns,
                                int64_t wait_ns) {
  return Guarded("hf_report_micro_batches", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    return engine->engine->machine()->counters()->ReportMicroBatches(stage, count, run_ns, wait_ns);
  });
}

hf_code hf_take_revocation(hf_engine* engine, char** lease_id) {
  return Guarded("hf_take_revocation", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(engine, "engine"));
    HF_RETURN_IF_ERROR(RequireArgument(lease_id, "lease_id"));
    *lease_id = nullptr;
    std::string asked_back;
    if (!engine->engine->TakeRevocation(&asked_back)) return absl::OkStatus();
    return hyperframes::CopyOut(asked_back, lease_id);
  });
}

}  // extern "C"
