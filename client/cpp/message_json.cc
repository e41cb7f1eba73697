#include "client/cpp/message_json.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

// Parser messages quote the text that they stumble over, which may be megabytes.
constexpr size_t kLongestReason = 384;

std::string Shortened(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  if (text.size() > kLongestReason) {
    text.resize(kLongestReason);
    text += "...";
  }
  return text;
}

}  // namespace

absl::Status ParseMessage(const std::string& json, const std::string& what,
                          google::protobuf::Message* message) {
  message->Clear();
  if (json.empty()) return absl::OkStatus();
  if (json.size() > kLongestJson) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " has ", json.size(), " bytes of JSON; at most ", kLongestJson, " are read"));
  }
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = false;
  const auto status = google::protobuf::util::JsonStringToMessage(json, message, options);
  if (status.ok()) return absl::OkStatus();
  const std::string reason(status.message().data(), status.message().size());
  return absl::InvalidArgumentError(absl::StrCat(what, " cannot be read as JSON of ",
                                                 message->GetDescriptor()->full_name(), ": ",
                                                 Shortened(reason)));
}

absl::StatusOr<std::string> WriteMessage(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = pretty;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    return absl::InternalError(absl::StrCat(
        "cannot write ", message.GetDescriptor()->full_name(),
        " as JSON: ", Shortened(std::string(status.message().data(), status.message().size()))));
  }
  return json;
}

}  // namespace hyperframes
