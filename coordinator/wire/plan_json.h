// Messages of proto/hyperframes/v1 as JSON: what travels through the C ABI and what -o json prints.
#ifndef HYPERFRAMES_COORDINATOR_WIRE_PLAN_JSON_H_
#define HYPERFRAMES_COORDINATOR_WIRE_PLAN_JSON_H_

#include <google/protobuf/message.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hyperframes {

constexpr size_t kMostJsonBytes = size_t{64} << 20;

// snake_case names, defaults printed, enums by name. As in every protobuf JSON, 64-bit integers are
// strings ("bytes": "4096"); optional fields that are absent are left out. Internal: the message
// holds text that is not UTF-8.
absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message);

// Reads snake_case and lowerCamelCase, and 64-bit integers as numbers or strings. Replaces
// `message`; leaves it empty when it fails. InvalidArgument: more than kMostJsonBytes, no JSON, a
// value of the wrong type, or an unknown field; the message names it and is bounded.
absl::Status FromJson(const std::string& json, google::protobuf::Message* message);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_WIRE_PLAN_JSON_H_
