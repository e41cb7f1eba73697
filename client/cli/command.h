// What a command of hfctl is, and what it is given: flags, a client, and where to print.
#ifndef HYPERFRAMES_CLIENT_CLI_COMMAND_H_
#define HYPERFRAMES_CLIENT_CLI_COMMAND_H_

#include <google/protobuf/message.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"
#include "common/config.h"

namespace hyperframes {

class CommandLine;

struct Command {
  std::string name;     // "nodes", "job logs".
  std::string usage;    // What follows the name: "ID [--rank N] [-f]".
  std::string summary;  // One line for `hfctl help`.
  // Declares its flags, calls Parse, does its work. The exit code, or a status that becomes one.
  absl::StatusOr<int> (*run)(CommandLine* line);
};

// Every command, in the order of `hfctl help`.
const std::vector<Command>& Commands();

// The flags and arguments of one call of one command. Used by one thread.
class CommandLine {
 public:
  // `arguments` is what was typed, without the words of the command itself.
  CommandLine(const Command& command, std::vector<std::string> arguments, std::ostream* out);

  // For flags of the command's own; --coordinator, --output and --timeout are there already.
  Config* config() { return &config_; }

  // Takes every `--name VALUE` and `--name=VALUE` before "--" out of the arguments, in order: for
  // flags that may come several times. InvalidArgument: the last one has no value.
  absl::StatusOr<std::vector<std::string>> TakeRepeated(const std::string& name);

  // Takes "--" and everything behind it: the command of a job. Empty where there is none.
  std::vector<std::string> TakeAfterDashes();

  // False: --help or the like was printed, and the command returns 0. InvalidArgument: a flag that
  // is none, or fewer than `least` or more than `most` arguments; the message has the usage.
  absl::StatusOr<bool> Parse(size_t least, size_t most);

  // After Parse.
  const std::vector<std::string>& positional() const { return config_.positional(); }
  bool json() const { return output_ == "json"; }
  const std::string& coordinator() const { return coordinator_; }
  std::ostream* out() const { return out_; }
  // --timeout, or `fallback` where it was not given.
  absl::Duration timeout(absl::Duration fallback) const;
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;

  // -o json: the message as it came, for programs.
  absl::Status PrintJson(const google::protobuf::Message& message) const;

 private:
  const Command& command_;
  std::vector<std::string> arguments_;
  std::ostream* const out_;
  Config config_;
  std::string coordinator_ = "127.0.0.1:7461";
  std::string output_ = "table";
  absl::Duration timeout_ = absl::ZeroDuration();
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CLI_COMMAND_H_
