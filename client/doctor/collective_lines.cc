#include "client/doctor/collective_lines.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/doctor/report.h"

namespace hyperframes {
namespace doctor {
namespace {

using Json = nlohmann::json;

std::string Line(const Json& json) {
  return absl::StrCat(json.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
}

void AddStatus(const absl::Status& status, Json* json) {
  (*json)["code"] = static_cast<int>(status.code());
  (*json)["message"] = std::string(status.message().substr(0, 400));
}

absl::Status StatusOf(const Json& json) {
  return absl::Status(static_cast<absl::StatusCode>(json.value("code", 2)),
                      json.value("message", std::string()));
}

void ReadLine(const Json& json, CollectiveAnswer* answer) {
  if (json.contains("doing")) {
    answer->doing = json.value("doing", std::string());
    answer->longest = absl::Seconds(json.value("longest_s", 0.0));
    answer->since = absl::Seconds(json.value("since_s", 0.0));
  } else if (json.contains("ready")) {
    answer->ready = true;
  } else if (json.contains("kind")) {
    PathFacts path;
    const bool reduces = json.value("kind", std::string()) == KindText(PathKind::kAllReduce);
    path.kind = reduces ? PathKind::kAllReduce : PathKind::kSendReceive;
    if (json.contains("code")) path.status = StatusOf(json);
    path.bytes_per_second = json.value("bytes_per_second", 0.0);
    path.latency = absl::Seconds(json.value("latency_s", 0.0));
    answer->measured.push_back(path);
  } else if (json.contains("code")) {
    answer->status = StatusOf(json);
  }
}

}  // namespace

std::string DoingLine(const std::string& doing, absl::Duration longest, absl::Duration since) {
  return Line({{"doing", doing},
               {"longest_s", absl::ToDoubleSeconds(longest)},
               {"since_s", absl::ToDoubleSeconds(since)}});
}

std::string ReadyLine() { return Line({{"ready", true}}); }

std::string MeasuredLine(const PathFacts& path) {
  Json json = {{"kind", KindText(path.kind)}};
  if (path.status.ok()) {
    json["bytes_per_second"] = path.bytes_per_second;
    json["latency_s"] = absl::ToDoubleSeconds(path.latency);
  } else {
    AddStatus(path.status, &json);
  }
  return Line(json);
}

std::string FailedLine(const absl::Status& status) {
  Json json;
  AddStatus(status, &json);
  return Line(json);
}

CollectiveAnswer ReadCollectiveLines(const std::string& lines) {
  CollectiveAnswer answer;
  for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    const Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;
    try {
      ReadLine(json, &answer);
    } catch (const Json::exception&) {
      continue;  // A value of another type.
    }
  }
  return answer;
}

}  // namespace doctor
}  // namespace hyperframes
