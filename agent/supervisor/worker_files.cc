#include "agent/supervisor/worker_files.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "agent/supervisor/record_file.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

using Json = nlohmann::json;

// Output and arguments of programs need not be UTF-8; a record must still be written.
std::string Dump(const Json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json ToJson(const ProcessIdentity& identity) {
  return {{"pid", identity.pid}, {"start", identity.start_time}, {"boot", identity.boot_id}};
}

ProcessIdentity IdentityFrom(const Json& json) {
  return {json.at("pid").get<pid_t>(), json.at("start").get<uint64_t>(),
          json.at("boot").get<std::string>()};
}

absl::Status Unreadable(const std::string& path, const std::exception& error) {
  return absl::DataLossError(path + " is unreadable: " + std::string(error.what()).substr(0, 200));
}

}  // namespace

bool IsWorkerId(const std::string& id) {
  if (id.empty() || id.size() > 127 || id[0] == '.') return false;
  return std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
}

absl::Status WriteSpec(const std::string& directory, const WorkerSpec& spec) {
  const Json json = {{"worker_id", spec.worker_id},
                     {"job_id", spec.job_id},
                     {"rank", spec.rank},
                     {"gpu", spec.gpu},
                     {"command", spec.command},
                     {"environment", spec.environment},
                     {"working_directory", spec.working_directory},
                     {"log_limit", spec.log_limit}};
  return WriteRecordFile(directory + "/" + kSpecFile, Dump(json), /*durable=*/true);
}

absl::StatusOr<WorkerSpec> ReadSpec(const std::string& directory) {
  const std::string path = directory + "/" + kSpecFile;
  HF_ASSIGN_OR_RETURN(const std::string text, ReadRecordFile(path));
  try {
    const Json json = Json::parse(text);
    WorkerSpec spec;
    spec.worker_id = json.at("worker_id").get<std::string>();
    spec.job_id = json.at("job_id").get<std::string>();
    spec.rank = json.at("rank").get<int>();
    spec.gpu = json.at("gpu").get<std::string>();
    spec.command = json.at("command").get<std::vector<std::string>>();
    spec.environment = json.at("environment").get<std::map<std::string, std::string>>();
    spec.working_directory = json.at("working_directory").get<std::string>();
    spec.log_limit = json.at("log_limit").get<Bytes>();
    return spec;
  } catch (const Json::exception& error) {
    return Unreadable(path, error);
  }
}

absl::Status WriteStatus(const std::string& directory, const WorkerStatus& status) {
  Json json = {
      {"state", static_cast<int>(status.state)}, {"shim", ToJson(status.shim)},
      {"worker", ToJson(status.worker)},         {"exit_code", status.exit_code},
      {"term_signal", status.term_signal},       {"message", status.message.substr(0, 512)}};
  if (status.ended != absl::InfinitePast()) json["ended_ns"] = absl::ToUnixNanos(status.ended);
  return WriteRecordFile(directory + "/" + kStatusFile, Dump(json), /*durable=*/true);
}

absl::StatusOr<WorkerStatus> ReadStatus(const std::string& directory) {
  const std::string path = directory + "/" + kStatusFile;
  HF_ASSIGN_OR_RETURN(const std::string text, ReadRecordFile(path));
  try {
    const Json json = Json::parse(text);
    WorkerStatus status;
    const int state = json.at("state").get<int>();
    if (state < static_cast<int>(WorkerState::kStarting) ||
        state > static_cast<int>(WorkerState::kExited)) {
      return absl::DataLossError(path + " has an unknown state");
    }
    status.state = static_cast<WorkerState>(state);
    status.shim = IdentityFrom(json.at("shim"));
    status.worker = IdentityFrom(json.at("worker"));
    status.exit_code = json.at("exit_code").get<int>();
    status.term_signal = json.at("term_signal").get<int>();
    status.message = json.at("message").get<std::string>();
    // Shims of an earlier version do not say it.
    if (json.contains("ended_ns")) {
      status.ended = absl::FromUnixNanos(json.at("ended_ns").get<int64_t>());
    }
    return status;
  } catch (const Json::exception& error) {
    return Unreadable(path, error);
  }
}

}  // namespace hyperframes
