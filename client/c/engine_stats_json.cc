#include "client/c/engine_stats_json.h"

#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "common/frame.h"

namespace hyperframes {
namespace {

using nlohmann::json;

json ByTier(const int64_t (&values)[kTierCount]) {
  json object = json::object();
  for (int tier = 0; tier < kTierCount; ++tier) {
    object[TierName(static_cast<Tier>(tier))] = values[tier];
  }
  return object;
}

json SecondsByTier(const absl::Duration (&values)[kTierCount]) {
  json object = json::object();
  for (int tier = 0; tier < kTierCount; ++tier) {
    object[TierName(static_cast<Tier>(tier))] = absl::ToDoubleSeconds(values[tier]);
  }
  return object;
}

}  // namespace

std::string EngineStatsJson(const EngineStats& stats) {
  json busy = json::object();
  for (int direction = 0; direction < kDirectionCount; ++direction) {
    busy[DirectionName(static_cast<Direction>(direction))] =
        SecondsByTier(stats.copy_busy[direction]);
  }
  return json{
      {"bytes_out", ByTier(stats.bytes_out)},
      {"bytes_in", ByTier(stats.bytes_in)},
      {"puts", ByTier(stats.puts)},
      {"fetches", ByTier(stats.fetches)},
      {"overflow_to_host", stats.overflow_to_host},
      {"overflow_to_keep", stats.overflow_to_keep},
      {"prefetch_hits", stats.prefetch_hits},
      {"prefetch_misses", stats.prefetch_misses},
      {"exposed_wait", absl::ToDoubleSeconds(stats.exposed_wait)},
      {"copy_busy", busy},
      {"stash_bytes", stats.stash_bytes},
      {"reload_bytes", stats.reload_bytes},
      {"arena_used", ByTier(stats.arena_used)},
      {"arena_capacity", ByTier(stats.arena_capacity)},
      {"live_storages", stats.live_storages},
  }
      .dump();
}

}  // namespace hyperframes
