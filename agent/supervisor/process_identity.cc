#include "agent/supervisor/process_identity.h"

#include <dirent.h>
#include <stdlib.h>

#include <deque>
#include <fstream>
#include <map>
#include <sstream>

namespace hyperframes {
namespace {

struct ProcStat {
  pid_t parent = 0;
  char state = 0;
  uint64_t flags = 0;
  uint64_t start_time = 0;
};

// False when the process does not exist.
bool ReadStat(pid_t pid, ProcStat* stat) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  // The name is in parentheses and may itself contain spaces and parentheses: start after the last.
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return false;
  std::istringstream rest(line.substr(end_of_name + 1));
  std::string skipped;
  rest >> stat->state >> stat->parent;
  for (int field = 5; field < 9; ++field) rest >> skipped;
  rest >> stat->flags;
  for (int field = 10; field < 22; ++field) rest >> skipped;
  rest >> stat->start_time;
  return static_cast<bool>(rest);
}

constexpr uint64_t kExiting = 0x4;  // PF_EXITING of the kernel: never in user space again.

bool Runs(const ProcStat& stat) {
  return stat.state != 'Z' && stat.state != 'X' && (stat.flags & kExiting) == 0;
}

}  // namespace

bool operator==(const ProcessIdentity& a, const ProcessIdentity& b) {
  return a.pid == b.pid && a.start_time == b.start_time && a.boot_id == b.boot_id;
}

const std::string& BootId() {
  static const std::string* const boot_id = [] {
    auto* text = new std::string;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> *text;
    return text;
  }();
  return *boot_id;
}

ProcessIdentity IdentifyProcess(pid_t pid) {
  ProcStat stat;
  if (pid <= 0 || !ReadStat(pid, &stat)) return {};
  return {pid, stat.start_time, BootId()};
}

bool ProcessRuns(const ProcessIdentity& identity) {
  ProcStat stat;
  if (identity.pid <= 0 || identity.boot_id != BootId()) return false;
  if (!ReadStat(identity.pid, &stat)) return false;
  return stat.start_time == identity.start_time && Runs(stat);
}

std::vector<ProcessIdentity> Descendants(pid_t root) {
  std::multimap<pid_t, std::pair<pid_t, ProcStat>> children;
  DIR* directory = opendir("/proc");
  if (directory == nullptr) return {};
  while (dirent* entry = readdir(directory)) {
    const pid_t pid = atoi(entry->d_name);
    ProcStat stat;
    if (pid > 0 && ReadStat(pid, &stat)) children.insert({stat.parent, {pid, stat}});
  }
  closedir(directory);
  std::vector<ProcessIdentity> found;
  std::deque<pid_t> open = {root};
  while (!open.empty()) {
    const auto range = children.equal_range(open.front());
    open.pop_front();
    for (auto child = range.first; child != range.second; ++child) {
      const auto& [pid, stat] = child->second;
      open.push_back(pid);
      if (Runs(stat)) found.push_back({pid, stat.start_time, BootId()});
    }
  }
  return found;
}

}  // namespace hyperframes
