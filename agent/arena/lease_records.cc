#include "agent/arena/lease_records.h"

#include <glog/logging.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "agent/supervisor/record_file.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr char kSuffix[] = ".json";

std::string ToJson(const LeaseRecord& record) {
  const nlohmann::json json = {
      {"lease_id", record.lease_id},
      {"job_id", record.job_id},
      {"rank", record.rank},
      {"token", record.token},
      {"device", record.device},
      {"tier", static_cast<int>(record.tier)},
      {"bytes", record.bytes},
      {"state", static_cast<int>(record.state)},
      {"boot_id", BootId()},
      {"holder_pid", record.holder.pid},
      {"holder_start", record.holder.start_time},
      {"revoke_grace_s", record.revoke_grace == absl::InfiniteDuration()
                             ? -1.0
                             : absl::ToDoubleSeconds(record.revoke_grace)},
  };
  return json.dump();
}

absl::StatusOr<LeaseRecord> FromJson(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    LeaseRecord record;
    record.lease_id = json.at("lease_id").get<std::string>();
    record.job_id = json.at("job_id").get<std::string>();
    record.rank = json.at("rank").get<int>();
    record.token = json.at("token").get<std::string>();
    record.device = json.at("device").get<std::string>();
    record.tier = static_cast<Tier>(json.at("tier").get<int>());
    record.bytes = json.at("bytes").get<Bytes>();
    record.state = static_cast<LeaseState>(json.at("state").get<int>());
    if (json.at("boot_id").get<std::string>() != BootId()) {
      return absl::DataLossError("it is of an earlier boot");
    }
    record.holder.pid = json.at("holder_pid").get<pid_t>();
    record.holder.start_time = json.at("holder_start").get<uint64_t>();
    if (record.holder.pid != 0) record.holder.boot_id = BootId();
    const double grace_s = json.value("revoke_grace_s", -1.0);
    if (grace_s >= 0) record.revoke_grace = absl::Seconds(grace_s);
    return record;
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(error.what());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<LeaseRecords>> LeaseRecords::Open(const std::string& directory) {
  HF_RETURN_IF_ERROR(MakeDirectories(directory));
  return std::unique_ptr<LeaseRecords>(new LeaseRecords(directory));
}

std::string LeaseRecords::PathOf(const std::string& lease_id) const {
  return directory_ + "/" + lease_id + kSuffix;
}

std::vector<LeaseRecord> LeaseRecords::Load() const {
  std::vector<LeaseRecord> records;
  for (const std::string& name : ListDirectory(directory_)) {
    const std::string path = directory_ + "/" + name;
    const auto text = ReadRecordFile(path);
    if (absl::IsNotFound(text.status())) continue;  // Its lease ended since the list was made.
    auto record = text.ok() ? FromJson(*text) : absl::StatusOr<LeaseRecord>(text.status());
    if (record.ok() && PathOf(record->lease_id) == path && record->bytes > 0) {
      records.push_back(std::move(*record));
      continue;
    }
    LOG(WARNING) << "lease record " << path << " is dropped: "
                 << (record.ok() ? "its content is not that of its name"
                                 : std::string(record.status().message()));
    unlink(path.c_str());
  }
  return records;
}

absl::Status LeaseRecords::Save(const LeaseRecord& record) {
  return WriteRecordFile(PathOf(record.lease_id), ToJson(record), /*durable=*/false);
}

void LeaseRecords::Forget(const std::string& lease_id) { unlink(PathOf(lease_id).c_str()); }

}  // namespace hyperframes
