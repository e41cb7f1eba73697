#include "common/host_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace hyperframes {
namespace {

constexpr int kCapIpcLock = 14;
// Version 1 of control groups writes "no limit" as the largest multiple of a page.
constexpr Bytes kNoLimitV1 = Bytes{1} << 60;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::optional<Bytes> ReadNumber(const std::string& path) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadText(path)), &number)) return absl::nullopt;
  return number;
}

// The value behind `name` (with its colon, where it has one) in a file of a line each.
std::string Field(const std::string& text, const std::string& name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, name)) return std::string(absl::StripAsciiWhitespace(line));
  }
  return "";
}

absl::optional<Bytes> KibField(const std::string& text, const std::string& name) {
  Bytes kib = 0;
  if (!absl::SimpleAtoi(absl::StripSuffix(Field(text, name), " kB"), &kib)) return absl::nullopt;
  return kib * kKiB;
}

// How one version of control groups names its files.
struct GroupFiles {
  std::string mount;
  std::string limit;
  std::string used;
  std::string droppable;  // In memory.stat: the page cache that nobody has touched lately.
};

void ReadGroup(const GroupFiles& files, const std::string& folder, HostLimits* limits) {
  const std::string at = files.mount + folder;
  const absl::optional<Bytes> limit = ReadNumber(absl::StrCat(at, "/", files.limit));
  if (!limit.has_value() || *limit >= kNoLimitV1) return;  // "max" is no number.
  Bytes used = ReadNumber(absl::StrCat(at, "/", files.used)).value_or(0);
  Bytes droppable = 0;
  const std::string stat = Field(ReadText(at + "/memory.stat"), files.droppable + " ");
  if (absl::SimpleAtoi(stat, &droppable)) used = std::max<Bytes>(0, used - droppable);
  const Bytes room = *limit - used;
  if (limits->group_limit.has_value() && *limits->group_limit - limits->group_used <= room) return;
  limits->group_limit = limit;
  limits->group_used = used;
}

// Of the process's own group and all above it, as far as this container sees them.
void ReadGroups(const GroupFiles& files, std::string folder, HostLimits* limits) {
  while (true) {
    if (folder == "/") folder.clear();
    ReadGroup(files, folder, limits);
    if (folder.empty()) return;
    folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/'));
  }
}

// Lines are "0::/a/b" for version 2 and "4:memory:/a/b" for version 1.
std::string GroupOf(const std::string& text, bool second) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool memory = std::count(controllers.begin(), controllers.end(), "memory") > 0;
    if (second ? parts[0] == "0" && parts[1].empty() : memory) return parts[2];
  }
  return "";
}

absl::optional<Bytes> SoftLimit(decltype(RLIMIT_AS) resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return absl::nullopt;
  return static_cast<Bytes>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<Bytes>::max()));
}

}  // namespace

HostLimits ReadHostLimits(const std::string& root) {
  HostLimits limits;
  limits.available = KibField(ReadText(root + "/proc/meminfo"), "MemAvailable:");
  const std::string groups = ReadText(root + "/proc/self/cgroup");
  const std::string mount = root + "/sys/fs/cgroup";
  ReadGroups({mount, "memory.max", "memory.current", "inactive_file"}, GroupOf(groups, true),
             &limits);
  ReadGroups(
      {mount + "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
      GroupOf(groups, false), &limits);
  const std::string status = ReadText(root + "/proc/self/status");
  uint64_t capabilities = 0;
  const bool known = absl::SimpleHexAtoi(Field(status, "CapEff:"), &capabilities);
  limits.locks_all = known && ((capabilities >> kCapIpcLock) & 1) != 0;
  limits.memlock = SoftLimit(RLIMIT_MEMLOCK);
  limits.address_space = SoftLimit(RLIMIT_AS);
  limits.address_space_used = KibField(status, "VmSize:").value_or(0);
  return limits;
}

HostRoom RoomOf(const HostLimits& limits) {
  HostRoom room = {std::numeric_limits<Bytes>::max(), "", ""};
  const auto tighten = [&room](Bytes bytes, std::string limit, std::string remedy) {
    bytes = std::max<Bytes>(0, bytes);
    if (bytes < room.bytes) room = {bytes, std::move(limit), std::move(remedy)};
  };
  if (limits.available.has_value()) {
    tighten(*limits.available, "the machine's free memory (MemAvailable)",
            "end other programs, or take a machine with more memory");
  }
  if (limits.group_limit.has_value()) {
    tighten(*limits.group_limit - limits.group_used,
            absl::StrCat("the container's memory limit of ", FormatBytes(*limits.group_limit)),
            "docker --memory, limits.memory of the pod, or MemoryMax of the unit");
  }
  if (limits.address_space.has_value()) {
    tighten(*limits.address_space - limits.address_space_used,
            absl::StrCat("the address space limit of ", FormatBytes(*limits.address_space)),
            "ulimit -v");
  }
  return room;
}

HostBudget FitHostBudget(Bytes asked, const std::string& setting, const HostLimits& limits) {
  HostLimits firm = limits;
  firm.available = absl::nullopt;
  const HostRoom room = RoomOf(firm);
  if (asked <= room.bytes - room.bytes / 16) {
    if (asked <= limits.available.value_or(asked)) return {asked, ""};
    return {asked,
            absl::StrCat(setting, " asks for ", FormatBytes(asked),
                         " of host memory, and the machine has ", FormatBytes(*limits.available),
                         " free (MemAvailable): unless it is given more as it uses it, lower ",
                         setting)};
  }
  HostBudget budget;
  budget.bytes = room.bytes - room.bytes / 16;
  budget.sentence =
      absl::StrCat(setting, " asks for ", FormatBytes(asked), " of host memory, and ", room.limit,
                   " leaves ", FormatBytes(room.bytes), ": ", FormatBytes(budget.bytes),
                   " is lent. Lower ", setting, ", or raise the limit (", room.remedy, ")");
  return budget;
}

std::string WhyNotPinned(Bytes need, const HostLimits& limits) {
  const HostRoom room = RoomOf(limits);
  const bool locked_out = !limits.locks_all && limits.memlock.value_or(need) < need;
  if (need > room.bytes) {
    return absl::StrCat(room.limit, " leaves ", FormatBytes(room.bytes), ": raise it (",
                        room.remedy, "), or lend less (--host-bytes, host_budget)");
  }
  if (locked_out) {
    return absl::StrCat("this process may lock ", FormatBytes(*limits.memlock),
                        " (ulimit -l): raise it (ulimit -l unlimited, LimitMEMLOCK=infinity, "
                        "docker --ulimit memlock=-1), or lend less (--host-bytes, host_budget)");
  }
  return absl::StrCat("no limit of this process forbids it, ", FormatBytes(room.bytes),
                      " are left: lend less (--host-bytes, host_budget)");
}

}  // namespace hyperframes
