// Settings of a program, one name each: flag `--listen-address`, environment
// HYPERFRAMES_LISTEN_ADDRESS, file key `listen_address`. Flag > environment > file > default.
//
//   Config config("hfagent", "Lends memory on one node.");
//   config.AddString(&options.node, "node", "name of this node");
//   HF_ASSIGN_OR_RETURN(const Config::Outcome outcome, config.Parse(argc, argv));
//   if (outcome == Config::Outcome::kExit) return 0;
#ifndef HYPERFRAMES_COMMON_CONFIG_H_
#define HYPERFRAMES_COMMON_CONFIG_H_

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/units.h"

namespace hyperframes {

// Used by one thread, once. Targets outlive it and hold the default when they are added.
class Config {
 public:
  enum class Outcome {
    kRun,   // Targets are set: go on.
    kExit,  // --help, --version or --print-config was printed: return 0.
  };

  // `summary` is the first sentence of --help.
  Config(std::string program, std::string summary);

  // What Parse reads and writes beside argv. Tests replace it.
  struct Surroundings {
    std::function<const char*(const std::string& name)> getenv;  // Null: unset.
    std::ostream* out = nullptr;
  };
  void set_surroundings(Surroundings surroundings);
  // Appended to the line of usage, e.g. "submit [flags] -- COMMAND ...".
  void set_usage(std::string usage) { usage_ = std::move(usage); }

  // `name` is written with dashes: "listen-address". Adding a name twice aborts.
  void AddString(std::string* target, const std::string& name, const std::string& help);
  void AddBytes(Bytes* target, const std::string& name, const std::string& help);
  // Also "auto", the default, which leaves `target` empty: the program decides.
  void AddOptionalBytes(absl::optional<Bytes>* target, const std::string& name,
                        const std::string& help);
  void AddDuration(absl::Duration* target, const std::string& name, const std::string& help);
  // min <= value <= max.
  void AddInt(int64_t* target, const std::string& name, int64_t min, int64_t max,
              const std::string& help);
  void AddDouble(double* target, const std::string& name, double min, double max,
                 const std::string& help);
  // `--name`, `--no-name`, `--name=true|false|yes|no|on|off|1|0`; never takes the next argument.
  void AddBool(bool* target, const std::string& name, const std::string& help);
  // `-o json` for `--output json`. `name` was added before.
  void AddShort(char letter, const std::string& name);

  // Reads `--name=value` and `--name value`; after `--` everything is positional. --config FILE
  // (or HYPERFRAMES_CONFIG) names a file of `key = value` lines with # comments. An environment
  // variable that is empty counts as unset. Every source is checked even where another one wins.
  // InvalidArgument names an unknown flag or key (with the nearest known one), a value that does
  // not parse, a flag or key given twice with different values, and where it stood. NotFound or
  // FailedPrecondition: the file cannot be read; the message has path and errno. Targets are
  // untouched when it fails.
  absl::StatusOr<Outcome> Parse(int argc, const char* const* argv);

  // What is no flag, in order. Valid after Parse.
  const std::vector<std::string>& positional() const { return positional_; }
  // True when flag, environment or file set it, even to its default: for refusing contradictions.
  bool WasSet(const std::string& name) const;

 private:
  struct Setting {
    std::string name;
    std::string help;
    std::string kind;  // "SIZE": what --help shows for the value; empty for a bool.
    char letter = 0;
    // Parses; with `commit` also stores.
    std::function<absl::Status(const std::string& value, bool commit)> set;
    std::function<std::string()> print;
    std::string value;   // Of the winning source.
    std::string source;  // "flag", "environment NAME", "FILE:LINE"; empty: default.
  };

  void Add(Setting setting);
  Setting* Find(const std::string& name);
  const Setting* Find(const std::string& name) const;
  std::string Nearest(const std::string& name) const;
  absl::Status ReadFlags(int argc, const char* const* argv, Outcome* outcome);
  absl::Status ReadOneFlag(const std::vector<std::string>& arguments, size_t* at);
  absl::Status ReadEnvironment();
  absl::Status ReadFile(const std::string& path);
  absl::Status ReadLine(const std::string& where, const std::string& line,
                        std::vector<std::string>* seen);
  absl::Status Offer(Setting* setting, const std::string& value, const std::string& source);
  std::string Help() const;
  std::string PrintConfig() const;

  const std::string program_;
  const std::string summary_;
  std::string usage_;
  Surroundings surroundings_;
  std::vector<Setting> settings_;
  std::vector<std::string> positional_;
  std::string config_path_;
  bool help_ = false;
  bool version_ = false;
  bool print_config_ = false;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_CONFIG_H_
