// EngineStats as the JSON of hf_engine_stats.
#ifndef HYPERFRAMES_CLIENT_C_ENGINE_STATS_JSON_H_
#define HYPERFRAMES_CLIENT_C_ENGINE_STATS_JSON_H_

#include <string>

#include "agent/engine/frame_engine.h"

namespace hyperframes {

// Names as in frame_engine.h; durations are seconds; arrays by tier are {"keep", "peer", "host"},
// copy_busy is {"out": by tier, "in": by tier}.
std::string EngineStatsJson(const EngineStats& stats);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_C_ENGINE_STATS_JSON_H_
