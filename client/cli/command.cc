#include "client/cli/command.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/message_json.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// At a prompt two seconds of silence are long; a worker waits for its whole deadline instead.
constexpr absl::Duration kPatienceAtAPrompt = absl::Seconds(2);

// Only what is common to all commands is read from the environment: HYPERFRAMES_NODE or
// HYPERFRAMES_RANK, which every worker has, say nothing about the job that somebody asks for. (The
// devices are the doctor's: it looks at this machine.)
const char* EnvironmentOfEveryCommand(const std::string& name) {
  static const auto* const known = new std::set<std::string>{
      "HYPERFRAMES_CONFIG", "HYPERFRAMES_COORDINATOR", "HYPERFRAMES_HOST_DEVICES",
      "HYPERFRAMES_OUTPUT", "HYPERFRAMES_TIMEOUT"};
  return known->count(name) == 1 ? std::getenv(name.c_str()) : nullptr;
}

}  // namespace

CommandLine::CommandLine(const Command& command, std::vector<std::string> arguments,
                         std::ostream* out)
    : command_(command),
      arguments_(std::move(arguments)),
      out_(out),
      config_("hfctl " + command.name, command.summary) {
  config_.set_surroundings({&EnvironmentOfEveryCommand, out});
  config_.set_usage(command.usage);
  config_.AddString(&coordinator_, "coordinator", "host:port of hfcoordinator");
  config_.AddString(&output_, "output", "table or json");
  config_.AddShort('o', "output");
  config_.AddDuration(&timeout_, "timeout",
                      "give up after this long; 0 is the command's own default: 10s, and none for "
                      "commands that wait");
}

absl::StatusOr<std::vector<std::string>> CommandLine::TakeRepeated(const std::string& name) {
  const std::string flag = "--" + name;
  std::vector<std::string> values;
  std::vector<std::string> rest;
  for (size_t at = 0; at < arguments_.size(); ++at) {
    const std::string& argument = arguments_[at];
    if (argument == "--") {
      rest.insert(rest.end(), arguments_.begin() + static_cast<std::ptrdiff_t>(at),
                  arguments_.end());
      break;
    }
    if (argument == flag) {
      if (at + 1 >= arguments_.size() || arguments_[at + 1] == "--") {
        return absl::InvalidArgumentError(absl::StrCat(flag, " needs a value"));
      }
      values.push_back(arguments_[++at]);
    } else if (absl::StartsWith(argument, flag + "=")) {
      values.push_back(argument.substr(flag.size() + 1));
    } else {
      rest.push_back(argument);
    }
  }
  arguments_ = std::move(rest);
  return values;
}

std::vector<std::string> CommandLine::TakeAfterDashes() {
  const auto dashes = std::find(arguments_.begin(), arguments_.end(), "--");
  if (dashes == arguments_.end()) return {};
  std::vector<std::string> taken(dashes + 1, arguments_.end());
  arguments_.erase(dashes, arguments_.end());
  return taken;
}

absl::StatusOr<bool> CommandLine::Parse(size_t least, size_t most) {
  const std::string program = "hfctl " + command_.name;
  std::vector<const char*> argv = {program.c_str()};
  for (const std::string& argument : arguments_) argv.push_back(argument.c_str());
  HF_ASSIGN_OR_RETURN(const Config::Outcome outcome,
                      config_.Parse(static_cast<int>(argv.size()), argv.data()));
  if (outcome == Config::Outcome::kExit) return false;
  if (output_ != "table" && output_ != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("--output is \"", output_, "\"; there are table and json"));
  }
  const size_t given = positional().size();
  if (given < least || given > most) {
    const std::string problem =
        given < least ? std::string("something is missing")
                      : absl::StrCat("\"", positional()[most], "\" is one argument too many");
    return absl::InvalidArgumentError(
        absl::StrCat(problem, "; usage: hfctl ", command_.name, " ", command_.usage));
  }
  return true;
}

absl::Duration CommandLine::timeout(absl::Duration fallback) const {
  return timeout_ > absl::ZeroDuration() ? timeout_ : fallback;
}

absl::StatusOr<std::unique_ptr<Client>> CommandLine::Connect() const {
  ClientOptions options;
  options.address = coordinator_;
  options.remedy = "name another with --coordinator";
  options.retry.give_up_after = kPatienceAtAPrompt;
  options.timeout = timeout(options.timeout);
  return Client::Create(std::move(options));
}

absl::Status CommandLine::PrintJson(const google::protobuf::Message& message) const {
  HF_ASSIGN_OR_RETURN(const std::string json, WriteMessage(message, /*pretty=*/true));
  *out_ << json;
  if (json.empty() || json.back() != '\n') *out_ << "\n";
  return absl::OkStatus();
}

}  // namespace hyperframes
