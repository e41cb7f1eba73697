#include "coordinator/jobs/job_spec.h"

#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

absl::Status Bad(const std::string& field, const std::string& value, const std::string& remedy) {
  return absl::InvalidArgumentError(
      absl::StrCat("spec.", field, " '", value.substr(0, 80), "': ", remedy));
}

bool HasZero(const std::string& text) { return text.find('\0') != std::string::npos; }

absl::Status CheckName(const std::string& name) {
  const bool fits = !name.empty() && name.size() <= 63 &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
                    });
  return fits ? absl::OkStatus()
              : Bad("name", name, "1 to 63 letters, digits, '-', '_' or '.' are accepted");
}

absl::Status CheckCommand(const v1::JobSpec& spec) {
  if (spec.command_size() == 0 || spec.command(0).empty()) {
    return Bad("command", "", "name a program and its arguments");
  }
  if (spec.command_size() > kMaxCommandArguments) {
    return Bad("command", absl::StrCat(spec.command_size(), " arguments"),
               absl::StrCat("at most ", kMaxCommandArguments));
  }
  size_t bytes = 0;
  for (const std::string& argument : spec.command()) {
    if (HasZero(argument)) return Bad("command", argument, "an argument has a zero byte");
    bytes += argument.size() + 1;
  }
  if (bytes > kMaxSpecTextBytes) {
    return Bad("command", absl::StrCat(bytes, " bytes"),
               absl::StrCat("at most ", kMaxSpecTextBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckEnvironment(const v1::JobSpec& spec) {
  if (spec.env_size() > kMaxEnvironment) {
    return Bad("env", absl::StrCat(spec.env_size(), " variables"),
               absl::StrCat("at most ", kMaxEnvironment));
  }
  size_t bytes = 0;
  for (const auto& variable : spec.env()) {
    const std::string& name = variable.first;
    const bool fits = !name.empty() && !absl::ascii_isdigit(name[0]) &&
                      std::all_of(name.begin(), name.end(), [](unsigned char c) {
                        return absl::ascii_isalnum(c) || c == '_';
                      });
    if (!fits) return Bad("env", name, "a name has letters, digits and '_', no digit first");
    if (IsReservedVariable(name)) {
      return Bad("env", name, "HyperFrames sets this variable itself; choose another name");
    }
    if (HasZero(variable.second)) return Bad("env", name, "its value has a zero byte");
    bytes += name.size() + variable.second.size() + 2;
  }
  if (bytes > kMaxSpecTextBytes) {
    return Bad("env", absl::StrCat(bytes, " bytes"), absl::StrCat("at most ", kMaxSpecTextBytes));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsReservedVariable(const std::string& name) {
  static const auto* const kNames = new std::set<std::string>{
      "RANK",       "LOCAL_RANK",       "WORLD_SIZE",  "LOCAL_WORLD_SIZE",
      "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
      "ROLE_RANK",  "ROLE_WORLD_SIZE",  "ROLE_NAME",   "CUDA_VISIBLE_DEVICES",
  };
  return absl::StartsWith(name, "HYPERFRAMES_") || absl::StartsWith(name, "TORCHELASTIC_") ||
         kNames->count(name) > 0;
}

absl::Status ValidateJobSpec(const v1::JobSpec& spec) {
  const auto& unknown = spec.GetReflection()->GetUnknownFields(spec);
  if (!unknown.empty()) {
    return Bad("field", absl::StrCat("number ", unknown.field(0).number()),
               "this coordinator does not know it; upgrade the coordinator or leave it out");
  }
  HF_RETURN_IF_ERROR(CheckName(spec.name()));
  HF_RETURN_IF_ERROR(CheckCommand(spec));
  HF_RETURN_IF_ERROR(CheckEnvironment(spec));
  const std::string& directory = spec.working_directory();
  if (!directory.empty() &&
      (directory[0] != '/' || directory.size() > 4095 || HasZero(directory))) {
    return Bad("working_directory", directory, "an absolute path of at most 4095 bytes, or none");
  }
  if (spec.ranks() < 1 || spec.ranks() > kMaxRanks) {
    return Bad("ranks", absl::StrCat(spec.ranks()), absl::StrCat("1 to ", kMaxRanks));
  }
  if (!v1::JobSpec::Placement_IsValid(spec.placement())) {
    return Bad("placement", absl::StrCat(spec.placement()), "PLACEMENT_PACK or PLACEMENT_SPREAD");
  }
  if (spec.lent_bytes_quota() < 0) {
    return Bad("lent_bytes_quota", absl::StrCat(spec.lent_bytes_quota()), "0 (none) or more");
  }
  if (spec.host_bytes_quota() < 0) {
    return Bad("host_bytes_quota", absl::StrCat(spec.host_bytes_quota()), "0 (none) or more");
  }
  if (!(spec.grace_s() >= 0 && spec.grace_s() <= 3600)) {
    return Bad("grace_s", absl::StrCat(spec.grace_s()), "0 to 3600 seconds");
  }
  if (spec.max_restarts() < 0 || spec.max_restarts() > kMostRestarts) {
    return Bad("max_restarts", absl::StrCat(spec.max_restarts()),
               absl::StrCat("0 to ", kMostRestarts));
  }
  if (!(spec.time_limit_s() >= 0 && spec.time_limit_s() <= kLongestTimeLimitSeconds)) {
    return Bad("time_limit_s", absl::StrCat(spec.time_limit_s()),
               absl::StrCat("0 (none) to ", kLongestTimeLimitSeconds, " seconds"));
  }
  return absl::OkStatus();
}

}  // namespace hyperframes
