// For tests that take one event away on each lane in turn and look whether anybody notices.
#ifndef HYPERFRAMES_AGENT_ENGINE_EVERY_LANE_H_
#define HYPERFRAMES_AGENT_ENGINE_EVERY_LANE_H_

#include <string>

#include "agent/engine/frame_engine.h"
#include "agent/engine/manual_device.h"
#include "gtest/gtest.h"

namespace hyperframes {

struct LaneCase {
  ManualDevice::Compute mode;
  Direction direction;
  Tier tier;
};

// All lanes, with waits that block and with waits that are queued.
inline auto EveryLane() {
  using Compute = ManualDevice::Compute;
  return testing::Values(LaneCase{Compute::kBlocking, Direction::kOut, Tier::kPeer},
                         LaneCase{Compute::kBlocking, Direction::kOut, Tier::kHost},
                         LaneCase{Compute::kBlocking, Direction::kIn, Tier::kPeer},
                         LaneCase{Compute::kBlocking, Direction::kIn, Tier::kHost},
                         LaneCase{Compute::kQueued, Direction::kOut, Tier::kPeer},
                         LaneCase{Compute::kQueued, Direction::kOut, Tier::kHost},
                         LaneCase{Compute::kQueued, Direction::kIn, Tier::kPeer},
                         LaneCase{Compute::kQueued, Direction::kIn, Tier::kHost});
}

// "QueuedOutPeer" and the like.
inline std::string LaneName(const testing::TestParamInfo<LaneCase>& info) {
  return std::string(info.param.mode == ManualDevice::Compute::kQueued ? "Queued" : "Blocking") +
         (info.param.direction == Direction::kOut ? "Out" : "In") +
         (info.param.tier == Tier::kPeer ? "Peer" : "Host");
}

// Every event is delayed, and with `plant` the one of this lane is left out.
inline void PlantOn(const LaneCase& lane, bool plant, FrameEngineOptions* options) {
  options->chaos.enabled = true;
  options->chaos.skip_event = plant;
  options->chaos.skip_direction = lane.direction;
  options->chaos.skip_tier = lane.tier;
}

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_EVERY_LANE_H_
