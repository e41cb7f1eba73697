#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/progress.h"
#include "client/cli/wait_for_job.h"
#include "client/cpp/message_json.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr std::streamsize kLongestJobFile = 1 << 20;
constexpr int64_t kMostRanks = 65536;
constexpr int64_t kMostRestarts = 1000;
constexpr size_t kLongestName = 63;

// The flags that describe a job, where no file does.
struct JobFlags {
  std::string name;
  int64_t ranks = 1;
  std::string placement = "pack";
  std::string working_directory;
  Bytes lent_quota = 0;
  Bytes host_quota = 0;
  absl::Duration grace = absl::ZeroDuration();
  absl::Duration time_limit = absl::ZeroDuration();
  int64_t max_restarts = 0;
};

// Those that contradict a job file.
constexpr const char* kJobFlagNames[] = {
    "name",       "ranks", "placement",  "working-directory", "lent-quota",
    "host-quota", "grace", "time-limit", "max-restarts"};

void Declare(JobFlags* flags, Config* config) {
  config->AddString(&flags->name, "name", "name of the job, for people; empty: after its program");
  config->AddInt(&flags->ranks, "ranks", 1, kMostRanks, "processes, one GPU each");
  config->AddString(&flags->placement, "placement", "pack (fewest nodes) or spread (most nodes)");
  config->AddString(&flags->working_directory, "working-directory",
                    "where ranks start; empty: the directory that hfctl runs in");
  config->AddBytes(&flags->lent_quota, "lent-quota", "bytes on peers over all ranks; 0: no quota");
  config->AddBytes(&flags->host_quota, "host-quota", "bytes in host memory; 0: no quota");
  config->AddDuration(&flags->grace, "grace", "between SIGTERM and SIGKILL; 0: 10s");
  config->AddInt(&flags->max_restarts, "max-restarts", 0, kMostRestarts,
                 "after a rank has failed; exit code 93 asks for none");
  config->AddDuration(&flags->time_limit, "time-limit",
                      "from its start on; then it ends as TIMEOUT; 0: none");
}

// What a job is called that nobody named: after its program, in the letters that names may have.
std::string NameAfter(const std::string& program) {
  std::string name = program.substr(program.find_last_of('/') + 1).substr(0, kLongestName);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_') c = '-';
  }
  return name.empty() ? "job" : name;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const std::string problem =
        absl::StrCat("cannot read the job file ", path, ": ", std::strerror(errno),
                     "; a command goes behind `--`: hfctl submit -- ", path);
    return errno == EACCES ? absl::PermissionDeniedError(problem) : absl::NotFoundError(problem);
  }
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory; wanted a job file"));
  }
  std::string text(static_cast<size_t>(kLongestJobFile) + 1, '\0');
  file.read(text.data(), kLongestJobFile + 1);
  if (file.gcount() > kLongestJobFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is longer than ", kLongestJobFile, " bytes, and no job file"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty; wanted a JSON object"));
  }
  return text;
}

absl::StatusOr<v1::JobSpec> SpecFromFile(const std::string& path, const Config& config) {
  for (const char* name : kJobFlagNames) {
    if (config.WasSet(name)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " contradicts the job file ", path,
                                                     "; write it there, or leave the file out"));
    }
  }
  HF_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  v1::JobSpec spec;
  HF_RETURN_IF_ERROR(ParseMessage(text, path, &spec));
  return spec;
}

absl::StatusOr<v1::JobSpec> SpecFromFlags(const JobFlags& flags,
                                          const std::vector<std::string>& command) {
  v1::JobSpec spec;
  spec.set_name(flags.name.empty() ? NameAfter(command[0]) : flags.name);
  for (const std::string& argument : command) spec.add_command(argument);
  spec.set_ranks(static_cast<int32_t>(flags.ranks));
  if (flags.placement == "spread") {
    spec.set_placement(v1::JobSpec::PLACEMENT_SPREAD);
  } else if (flags.placement != "pack") {
    return absl::InvalidArgumentError(
        absl::StrCat("--placement is \"", flags.placement, "\"; there are pack and spread"));
  }
  spec.set_working_directory(flags.working_directory);
  if (spec.working_directory().empty()) {
    char here[PATH_MAX];
    if (getcwd(here, sizeof here) != nullptr) spec.set_working_directory(here);
  }
  spec.set_lent_bytes_quota(flags.lent_quota);
  spec.set_host_bytes_quota(flags.host_quota);
  spec.set_grace_s(absl::ToDoubleSeconds(flags.grace));
  spec.set_max_restarts(static_cast<int32_t>(flags.max_restarts));
  spec.set_time_limit_s(absl::ToDoubleSeconds(flags.time_limit));
  return spec;
}

// "K=V", or "K" alone for the value that K has here.
absl::Status AddEnvironment(const std::vector<std::string>& pairs, v1::JobSpec* spec) {
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    const char* here = equals == std::string::npos ? std::getenv(key.c_str()) : nullptr;
    if (key.empty() || (equals == std::string::npos && here == nullptr)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env \"", pair.substr(0, 64),
                       "\": wanted KEY=VALUE, or the KEY of a variable that is set here"));
    }
    (*spec->mutable_env())[key] = here != nullptr ? here : pair.substr(equals + 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SubmitJobResponse> Send(Client* client, const v1::SubmitJobRequest& request) {
  Progress progress(absl::StrCat("waiting for ", client->address(), " to take the job"),
                    Progress::ForPeople());
  const Watched watched(&progress);
  return client->SubmitJob(request);
}

}  // namespace

absl::StatusOr<int> RunSubmit(CommandLine* line) {
  JobFlags flags;
  std::string key;
  bool wait = false;
  Declare(&flags, line->config());
  line->config()->AddString(&key, "idempotency-key",
                            "a repeated submit with the same key returns the first one's job");
  line->config()->AddBool(&wait, "wait",
                          "until the job has ended: exit code 0 for SUCCEEDED, 1 otherwise");
  const std::vector<std::string> command = line->TakeAfterDashes();
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> environment, line->TakeRepeated("env"));
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(0, 1));
  if (!run) return kExitOk;
  if (!command.empty() && !line->positional().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("both a job file (", line->positional()[0],
                                                   ") and a command (", command[0].substr(0, 64),
                                                   "); give one of them"));
  }
  if (command.empty() && line->positional().empty()) {
    return absl::InvalidArgumentError(
        "nothing to run; give a job file, or put the command behind `--`: "
        "hfctl submit --ranks 2 -- python train.py");
  }
  v1::SubmitJobRequest request;
  if (command.empty()) {
    HF_ASSIGN_OR_RETURN(*request.mutable_spec(),
                        SpecFromFile(line->positional()[0], *line->config()));
  } else {
    HF_ASSIGN_OR_RETURN(*request.mutable_spec(), SpecFromFlags(flags, command));
  }
  HF_RETURN_IF_ERROR(AddEnvironment(environment, request.mutable_spec()));
  request.set_idempotency_key(key);
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  HF_ASSIGN_OR_RETURN(const v1::SubmitJobResponse response, Send(client.get(), request));
  if (line->json() && !wait) {
    HF_RETURN_IF_ERROR(line->PrintJson(response.job()));
    return kExitOk;
  }
  if (!line->json()) PrintOutcome(response.job(), line->out());
  if (!wait) return kExitOk;
  line->out()->flush();  // Its id, before the wait.
  return WaitForJob(line, client.get(), response.job().id());
}

}  // namespace hyperframes
