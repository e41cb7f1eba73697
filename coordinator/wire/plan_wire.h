// Room: coordinator/wire. Turns the messages of proto/hyperframes/v1/plan.proto into the planner's
// values and back, in one place, so that coordinator, C ABI and tests read one schema. It decides
// nothing.
//
// FromProto refuses with InvalidArgument what no value could stand for, naming the field and the
// value: negative bytes, seconds that are negative or not finite, an unknown enum number. What
// contradicts itself only across fields is the planner's to refuse.
#ifndef HYPERFRAMES_COORDINATOR_WIRE_PLAN_WIRE_H_
#define HYPERFRAMES_COORDINATOR_WIRE_PLAN_WIRE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "hyperframes/v1/plan.pb.h"

namespace hyperframes {

// `field` leads the path in errors: "problem" gives "problem.ranks[0].resident_bytes is -1".
absl::StatusOr<PlanProblem> FromProto(const v1::PlanProblem& message,
                                      const std::string& field = "problem");
absl::StatusOr<RankProblem> FromProto(const v1::RankProblem& message, const std::string& field);
absl::StatusOr<BlockProfile> FromProto(const v1::BlockProfile& message, const std::string& field);
absl::StatusOr<DeviceProfile> FromProto(const v1::DeviceProfile& message, const std::string& field);
absl::StatusOr<LinkProfile> FromProto(const v1::LinkProfile& message, const std::string& field);
// The epoch is not the planner's: read it from the message.
absl::StatusOr<FramePlan> FromProto(const v1::FramePlan& message,
                                    const std::string& field = "plan");

v1::PlanProblem ToProto(const PlanProblem& problem);
v1::RankProblem ToProto(const RankProblem& rank);
v1::BlockProfile ToProto(const BlockProfile& block);
v1::DeviceProfile ToProto(const DeviceProfile& device);
v1::LinkProfile ToProto(const LinkProfile& link);
// `epoch`: 0 embedded.
v1::FramePlan ToProto(const FramePlan& plan, int64_t epoch);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_WIRE_PLAN_WIRE_H_
