#include "common/config.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config_text.h"
#include "common/protocol_version.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kAuto = "auto";

std::string EnvironmentName(const std::string& name) {
  return absl::StrCat("HYPERFRAMES_",
                      absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
}

std::string FileKey(const std::string& name) { return absl::StrReplaceAll(name, {{"-", "_"}}); }

absl::Status Refuse(const std::string& why) { return absl::InvalidArgumentError(why); }

}  // namespace

Config::Config(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)), usage_("[flags]") {
  surroundings_.getenv = [](const std::string& name) { return std::getenv(name.c_str()); };
  surroundings_.out = &std::cout;
  AddString(&config_path_, "config", "file of `key = value` lines with # comments");
  AddBool(&help_, "help", "print this and exit");
  AddShort('h', "help");
  AddBool(&version_, "version", "print the version and exit");
  AddBool(&print_config_, "print-config", "print every value with its source and exit");
}

void Config::set_surroundings(Surroundings surroundings) {
  surroundings_ = std::move(surroundings);
}

void Config::Add(Setting setting) {
  if (Find(setting.name) != nullptr) {
    std::cerr << "setting --" << setting.name << " was added twice\n";
    std::abort();
  }
  settings_.push_back(std::move(setting));
}

void Config::AddString(std::string* target, const std::string& name, const std::string& help) {
  Setting setting{name, help, "TEXT", 0, nullptr, [target] { return *target; }, "", ""};
  setting.set = [target](const std::string& value, bool commit) {
    if (commit) *target = value;
    return absl::OkStatus();
  };
  Add(std::move(setting));
}

void Config::AddBytes(Bytes* target, const std::string& name, const std::string& help) {
  Setting setting{name, help, "SIZE", 0, nullptr, [target] { return FormatBytes(*target); },
                  "",   ""};
  setting.set = [target](const std::string& value, bool commit) -> absl::Status {
    HF_ASSIGN_OR_RETURN(const Bytes parsed, ParseBytes(value));
    if (commit) *target = parsed;
    return absl::OkStatus();
  };
  Add(std::move(setting));
}

void Config::AddOptionalBytes(absl::optional<Bytes>* target, const std::string& name,
                              const std::string& help) {
  const auto print = [target] { return target->has_value() ? FormatBytes(**target) : kAuto; };
  Setting setting{name, help, "SIZE", 0, nullptr, print, "", ""};
  setting.set = [target](const std::string& value, bool commit) -> absl::Status {
    absl::optional<Bytes> given;
    if (value != kAuto) {
      HF_ASSIGN_OR_RETURN(given, ParseBytes(value));
    }
    if (commit) *target = given;
    return absl::OkStatus();
  };
  Add(std::move(setting));
}

void Config::AddDuration(absl::Duration* target, const std::string& name, const std::string& help) {
  Setting setting{name, help,    "DURATION",
                  0,    nullptr, [target] { return absl::FormatDuration(*target); },
                  "",   ""};
  setting.set = [target](const std::string& value, bool commit) -> absl::Status {
    HF_ASSIGN_OR_RETURN(const absl::Duration parsed, ParseDuration(value));
    if (commit) *target = parsed;
    return absl::OkStatus();
  };
  Add(std::move(setting));
}

void Config::AddInt(int64_t* target, const std::string& name, int64_t min, int64_t max,
                    const std::string& help) {
  Setting setting{name, help, "N", 0, nullptr, [target] { return absl::StrCat(*target); }, "", ""};
  setting.set = [=](const std::string& value, bool commit) -> absl::Status {
    int64_t parsed = 0;
    if (!absl::SimpleAtoi(value, &parsed) || parsed < min || parsed > max) {
      return Refuse(
          absl::StrCat("\"", Excerpt(value), "\" is no whole number from ", min, " to ", max));
    }
    if (commit) *target = parsed;
    return absl::OkStatus();
  };
  Add(std::move(setting));
}

void Config::AddDouble(double* target, const std::string& name, double min, double max,
                       const std::string& help) {
  Setting setting{name, help, "NUMBER", 0, nullptr, [target] { return absl::StrCat(*target); },
                  "",   ""};
  setting.set = [=](const std::string& value, bool commit) -> absl::Status {
    double parsed = 0;
    // Written so that NaN is refused.
    if (!absl::SimpleAtod(value, &parsed) || !(parsed >= min && parsed <= max)) {
      return Refuse(absl::StrCat("\"", Excerpt(value), "\" is no number from ", min, " to ", max));
    }
    if (commit) *target = parsed;
    return absl::OkStatus();
  };
  Add(std::move(setting));
}

void Config::AddBool(bool* target, const std::string& name, const std::string& help) {
  Setting setting{name, help,    "",
                  0,    nullptr, [target] { return std::string(*target ? "true" : "false"); },
                  "",   ""};
  setting.set = [target](const std::string& value, bool commit) -> absl::Status {
    const std::string lower = absl::AsciiStrToLower(value);
    const bool yes = lower == "true" || lower == "yes" || lower == "on" || lower == "1";
    const bool no = lower == "false" || lower == "no" || lower == "off" || lower == "0";
    if (!yes && !no) {
      return Refuse(absl::StrCat("\"", Excerpt(value), "\" is neither true nor false"));
    }
    if (commit) *target = yes;
    return absl::OkStatus();
  };
  Add(std::move(setting));
}

void Config::AddShort(char letter, const std::string& name) {
  Setting* setting = Find(name);
  if (setting == nullptr) std::abort();
  setting->letter = letter;
}

Config::Setting* Config::Find(const std::string& name) {
  return const_cast<Setting*>(std::as_const(*this).Find(name));
}

const Config::Setting* Config::Find(const std::string& name) const {
  for (const Setting& setting : settings_) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

bool Config::WasSet(const std::string& name) const {
  const Setting* setting = Find(name);
  return setting != nullptr && !setting->source.empty();
}

std::string Config::Nearest(const std::string& name) const {
  std::vector<std::string> names;
  for (const Setting& setting : settings_) names.push_back(setting.name);
  return NearestName(name, names);
}

absl::Status Config::Offer(Setting* setting, const std::string& value, const std::string& source) {
  if (value.size() > kMostValue) {
    return Refuse(absl::StrCat("--", setting->name, " (", source, ") has ", value.size(),
                               " characters, more than ", kMostValue));
  }
  const absl::Status parsed = setting->set(value, /*commit=*/false);
  if (!parsed.ok()) {
    return Refuse(absl::StrCat("--", setting->name, " (", source, "): ", parsed.message()));
  }
  // Sources are read from the strongest to the weakest: the first one wins.
  if (setting->source.empty()) {
    setting->value = value;
    setting->source = source;
  } else if (setting->source == "flag" && source == "flag" && setting->value != value) {
    return Refuse(absl::StrCat("--", setting->name, " is given twice, as \"",
                               Excerpt(setting->value), "\" and \"", Excerpt(value),
                               "\"; leave one out"));
  }
  return absl::OkStatus();
}

absl::Status Config::ReadOneFlag(const std::vector<std::string>& arguments, size_t* at) {
  const std::string& argument = arguments[*at];
  const bool is_short = argument[1] != '-';
  const size_t equals = argument.find('=');
  std::string name = argument.substr(
      is_short ? 1 : 2, equals == std::string::npos ? equals : equals - (is_short ? 1 : 2));
  Setting* setting = is_short ? nullptr : Find(name);
  for (Setting& candidate : settings_) {
    if (is_short && name.size() == 1 && candidate.letter == name[0]) setting = &candidate;
  }
  if (setting == nullptr && !is_short && absl::StartsWith(name, "no-")) {
    Setting* denied = Find(name.substr(3));
    if (denied != nullptr && denied->kind.empty() && equals == std::string::npos) {
      return Offer(denied, "false", "flag");
    }
  }
  if (setting == nullptr) {
    const std::string near = is_short ? "" : Nearest(name);
    return Refuse(absl::StrCat(
        "unknown flag ", Excerpt(argument.substr(0, equals)),
        near.empty() ? std::string() : absl::StrCat("; did you mean --", near, "?"),
        near.empty() ? absl::StrCat("; ", program_, " --help lists them") : std::string()));
  }
  if (equals != std::string::npos) return Offer(setting, argument.substr(equals + 1), "flag");
  if (setting->kind.empty()) return Offer(setting, "true", "flag");
  // "--node --coordinator x" forgot a value: another flag is never swallowed as one.
  if (*at + 1 >= arguments.size() || absl::StartsWith(arguments[*at + 1], "--")) {
    return Refuse(
        absl::StrCat("--", setting->name, " needs a value: --", setting->name, "=", setting->kind));
  }
  *at += 1;
  return Offer(setting, arguments[*at], "flag");
}

absl::Status Config::ReadFlags(int argc, const char* const* argv, Outcome* outcome) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    if (argument == "--") {
      positional_.insert(positional_.end(), arguments.begin() + static_cast<int64_t>(at) + 1,
                         arguments.end());
      break;
    }
    if (argument.size() < 2 || argument[0] != '-') {
      positional_.push_back(argument);
      continue;
    }
    HF_RETURN_IF_ERROR(ReadOneFlag(arguments, &at));
  }
  const bool wants_help = Find("help")->value == "true";
  if (wants_help || Find("version")->value == "true") {
    *surroundings_.out << (wants_help ? Help()
                                      : absl::StrCat(program_, " ", kReleaseVersion, " (protocol ",
                                                     kProtocolMajor, ".", kProtocolMinor, ")\n"));
    *outcome = Outcome::kExit;
  }
  return absl::OkStatus();
}

absl::Status Config::ReadEnvironment() {
  for (Setting& setting : settings_) {
    const std::string name = EnvironmentName(setting.name);
    const char* value = surroundings_.getenv(name);
    if (value == nullptr || *value == '\0' || setting.name == "help" || setting.name == "version") {
      continue;
    }
    HF_RETURN_IF_ERROR(Offer(&setting, value, absl::StrCat("environment ", name)));
  }
  return absl::OkStatus();
}

absl::Status Config::ReadLine(const std::string& where, const std::string& line,
                              std::vector<std::string>* seen) {
  std::string key;
  std::string value;
  HF_RETURN_IF_ERROR(SplitConfigLine(where, line, &key, &value));
  if (key.empty()) return absl::OkStatus();
  const std::string name = absl::StrReplaceAll(key, {{"_", "-"}});
  Setting* setting = key.find('-') == std::string::npos ? Find(name) : nullptr;
  if (setting == nullptr || name == "config" || name == "help" || name == "version" ||
      name == "print-config") {
    const std::string near = Nearest(name);
    return Refuse(absl::StrCat(where, ": unknown key \"", Excerpt(key), "\"",
                               near.empty() ? std::string("; keys are the names of flags with '_'")
                                            : absl::StrCat("; did you mean ", FileKey(near), "?")));
  }
  if (std::find(seen->begin(), seen->end(), key) != seen->end()) {
    return Refuse(absl::StrCat(where, ": ", key, " is given twice; leave one out"));
  }
  seen->push_back(key);
  return Offer(setting, value, where);
}

absl::Status Config::ReadFile(const std::string& path) {
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadConfigLines(path));
  std::vector<std::string> seen;
  for (size_t i = 0; i < lines.size(); ++i) {
    HF_RETURN_IF_ERROR(ReadLine(absl::StrCat(path, ":", i + 1), lines[i], &seen));
  }
  return absl::OkStatus();
}

absl::StatusOr<Config::Outcome> Config::Parse(int argc, const char* const* argv) {
  Outcome outcome = Outcome::kRun;
  HF_RETURN_IF_ERROR(ReadFlags(argc, argv, &outcome));
  if (outcome == Outcome::kExit) return outcome;
  HF_RETURN_IF_ERROR(ReadEnvironment());
  const Setting* config = Find("config");
  if (!config->value.empty()) HF_RETURN_IF_ERROR(ReadFile(config->value));
  for (Setting& setting : settings_) {
    if (!setting.source.empty()) HF_RETURN_IF_ERROR(setting.set(setting.value, /*commit=*/true));
  }
  if (print_config_) {
    *surroundings_.out << PrintConfig();
    return Outcome::kExit;
  }
  return Outcome::kRun;
}

std::string Config::Help() const {
  std::string text = absl::StrCat(program_, ": ", summary_, "\n\nUsage: ", program_, " ", usage_,
                                  "\n\nFlag > environment > --config file > default.\n");
  for (const Setting& setting : settings_) {
    const std::string shown = setting.print();
    const bool has_default = !shown.empty() && !setting.kind.empty();
    absl::StrAppend(&text, "  ",
                    setting.letter != 0 ? absl::StrCat("-", std::string(1, setting.letter), ", ")
                                        : std::string(),
                    "--", setting.name,
                    setting.kind.empty() ? std::string() : absl::StrCat("=", setting.kind),
                    "\n      ", setting.help,
                    has_default ? absl::StrCat(" (default ", shown, ")") : std::string(), "\n");
  }
  return text;
}

std::string Config::PrintConfig() const {
  std::string text;
  for (const Setting& setting : settings_) {
    if (setting.name == "help" || setting.name == "version" || setting.name == "print-config") {
      continue;
    }
    absl::StrAppend(&text, FileKey(setting.name), " = ", setting.print(), "  # ",
                    setting.source.empty() ? "default" : setting.source, "\n");
  }
  return text;
}

}  // namespace hyperframes
