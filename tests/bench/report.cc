#include "tests/bench/report.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

const char* Workspace() { return std::getenv("BUILD_WORKSPACE_DIRECTORY"); }  // By `bazel run`.

// First line of what `command` prints; "unknown" when it fails.
std::string FirstLineOf(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "unknown";
  char buffer[256] = "";
  const bool read = fgets(buffer, sizeof(buffer), pipe) != nullptr;
  const bool succeeded = pclose(pipe) == 0;
  return read && succeeded ? std::string(absl::StripTrailingAsciiWhitespace(buffer)) : "unknown";
}

std::string Commit() {
  const char* const given = std::getenv("HYPERFRAMES_COMMIT");
  if (given != nullptr && *given != '\0') return given;
  return FirstLineOf(absl::StrCat("git -C '", Workspace() == nullptr ? "." : Workspace(),
                                  "' rev-parse HEAD 2>/dev/null"));
}

std::string Machine() {
  utsname name = {};
  uname(&name);
  const std::string cpu = FirstLineOf("sed -n 's/^model name.*: //p' /proc/cpuinfo 2>/dev/null");
  return absl::StrCat(name.sysname, " ", name.release, " ", name.machine, ", ", cpu, ", ",
                      std::thread::hardware_concurrency(), " cores");
}

}  // namespace

nlohmann::ordered_json EmptyReport(const std::string& name, const std::string& command) {
  nlohmann::ordered_json report;
  report["name"] = name;
  report["command"] = command;
  report["commit"] = Commit();
  report["machine"] = Machine();
  report["rows"] = nlohmann::ordered_json::array();
  report["ratios"] = nlohmann::ordered_json::object();
  return report;
}

absl::Status WriteReport(const std::string& path, const nlohmann::ordered_json& report) {
  std::ofstream file(path);
  file << report.dump(2) << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot write ", path, ": ", std::strerror(errno), "; name a writable file with --output"));
}

void KeepOtherRatios(const std::string& path, nlohmann::ordered_json* report) {
  std::ifstream file(path);
  const auto before = nlohmann::ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!before.is_object() || !before.contains("ratios_from")) return;
  for (const auto& origin : before["ratios_from"].items()) {
    if (!before.contains("ratios") || !before["ratios"].contains(origin.key())) continue;
    (*report)["ratios"][origin.key()] = before["ratios"][origin.key()];
    (*report)["ratios_from"][origin.key()] = origin.value();
  }
}

std::string DefaultReportPath(const std::string& name) {
  return absl::StrCat(Workspace() == nullptr ? "." : Workspace(), "/docs/benchmarks/", name,
                      ".json");
}

double Percentile(std::vector<double>* values, double share) {
  std::sort(values->begin(), values->end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values->size())));
  return (*values)[std::min(values->size() - 1, rank == 0 ? 0 : rank - 1)];
}

}  // namespace hyperframes
