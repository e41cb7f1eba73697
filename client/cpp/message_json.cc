#include "client/cpp/message_json.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/plan_json.h"

namespace hyperframes {

absl::Status ParseMessage(const std::string& json, const std::string& what,
                          google::protobuf::Message* message) {
  message->Clear();
  if (json.empty()) return absl::OkStatus();
  absl::Status status = FromJson(json, message);
  if (status.ok()) return status;
  // Parsers point at a place with a line of their own; an error of ours is one line.
  std::string reason(status.message());
  for (char& c : reason) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return absl::Status(status.code(), absl::StrCat(what, ": ", reason));
}

absl::StatusOr<std::string> WriteMessage(const google::protobuf::Message& message, bool pretty) {
  if (!pretty) return ToJson(message);
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (status.ok()) return json;
  return ToJson(message);  // Fails likewise, with its sentence.
}

}  // namespace hyperframes
