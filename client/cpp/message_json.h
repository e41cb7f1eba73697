// Messages of proto/hyperframes/v1 as JSON (coordinator/wire/plan_json.h), with what files, the C
// ABI and `hfctl -o json` need beside: the name of the text in errors, and lines for people. Both
// spellings of a field are read, snake_case is written, and an unknown field is refused by name.
#ifndef HYPERFRAMES_CLIENT_CPP_MESSAGE_JSON_H_
#define HYPERFRAMES_CLIENT_CPP_MESSAGE_JSON_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hyperframes {

// Replaces `message` by what `json` says. An empty text reads as "{}". `what` names the text in
// errors ("job.json", "GetJobRequest"). InvalidArgument: not JSON, cut short, too long, a field
// that the message does not have (named), or a value of the wrong kind; at most 512 bytes.
absl::Status ParseMessage(const std::string& json, const std::string& what,
                          google::protobuf::Message* message);

// All fields, defaults included, so that a reader need not know them; 64-bit integers are strings
// (the protobuf JSON mapping). `pretty` breaks lines for people. Internal: a string that is not
// UTF-8.
absl::StatusOr<std::string> WriteMessage(const google::protobuf::Message& message,
                                         bool pretty = false);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CPP_MESSAGE_JSON_H_
