#include "coordinator/wire/plan_json.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

std::string Bounded(const std::string& text) {
  constexpr size_t kMost = 300;
  return text.size() <= kMost ? text : absl::StrCat(text.substr(0, kMost), "...");
}

}  // namespace

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (status.ok()) return json;
  return absl::InternalError(absl::StrCat("cannot write ", message.GetDescriptor()->name(),
                                          " as JSON: ", Bounded(std::string(status.message()))));
}

absl::Status FromJson(const std::string& json, google::protobuf::Message* message) {
  message->Clear();
  const std::string name = message->GetDescriptor()->name();
  if (json.size() > kMostJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " JSON has ", json.size(), " bytes, more than ", kMostJsonBytes));
  }
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = false;
  const auto status = google::protobuf::util::JsonStringToMessage(json, message, options);
  if (status.ok()) return absl::OkStatus();
  message->Clear();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " JSON is refused: ", Bounded(std::string(status.message()))));
}

}  // namespace hyperframes
