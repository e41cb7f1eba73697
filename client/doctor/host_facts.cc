#include "client/doctor/host_facts.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace hyperframes {
namespace doctor {
namespace {

// include/linux/proc_ns.h: the inodes of the namespaces that the machine itself lives in.
constexpr const char* kFirstPidNamespace = "pid:[4026531836]";
constexpr const char* kFirstIpcNamespace = "ipc:[4026531839]";
constexpr int kCapIpcLock = 14;
// Version 1 of cgroups writes "no limit" as the largest multiple of a page.
constexpr Bytes kNoLimitV1 = Bytes{1} << 60;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> ListFolder(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), &closedir);
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  return names;
}

absl::optional<Bytes> ReadNumber(const std::string& path) {
  int64_t number = 0;
  const std::string text = ReadText(path);
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &number)) return absl::nullopt;
  return number;
}

// The value behind "Name:" in a file like /proc/meminfo; empty where there is none.
std::string Field(const std::string& text, const std::string& name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, name + ":")) {
      return std::string(absl::StripAsciiWhitespace(line.substr(name.size() + 1)));
    }
  }
  return "";
}

std::string LinkTarget(const std::string& path) {
  char target[64] = "";
  const ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : "";
}

bool IsAnother(const std::string& link, const char* first) {
  const std::string target = LinkTarget(link);
  return !target.empty() && target != first;
}

bool IsDeviceFile(const std::string& name) {
  int number = 0;
  return absl::StartsWith(name, "nvidia") && absl::SimpleAtoi(name.substr(6), &number);
}

}  // namespace

void HostFactSource::Collect(absl::Time /*deadline*/, Facts* facts) {
  HostFacts& host = facts->host;
  const std::string status = ReadText(root_ + "/proc/self/status");
  uint64_t capabilities = 0;
  const std::string effective = Field(status, "CapEff");
  if (absl::SimpleHexAtoi(effective, &capabilities)) {
    host.is_root = ((capabilities >> kCapIpcLock) & 1) != 0;
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    host.memlock = static_cast<Bytes>(limit.rlim_cur);
  }
  struct statvfs shared = {};
  if (statvfs((root_ + "/dev/shm").c_str(), &shared) == 0) {
    host.shared_memory_bytes = static_cast<Bytes>(shared.f_blocks * shared.f_frsize);
  }
  Bytes available_kib = 0;
  const std::string available = Field(ReadText(root_ + "/proc/meminfo"), "MemAvailable");
  if (absl::SimpleAtoi(absl::StripSuffix(available, " kB"), &available_kib)) {
    host.available_bytes = available_kib * kKiB;
  }
  const std::string cgroup = root_ + "/sys/fs/cgroup";
  host.memory_limit = ReadNumber(cgroup + "/memory.max");  // "max" is no number.
  host.memory_used = ReadNumber(cgroup + "/memory.current").value_or(0);
  if (!host.memory_limit.has_value()) {
    host.memory_limit = ReadNumber(cgroup + "/memory/memory.limit_in_bytes");
    host.memory_used = ReadNumber(cgroup + "/memory/memory.usage_in_bytes").value_or(0);
    if (host.memory_limit.value_or(0) >= kNoLimitV1) host.memory_limit = absl::nullopt;
  }
  host.own_pid_namespace = IsAnother(root_ + "/proc/self/ns/pid", kFirstPidNamespace);
  host.own_ipc_namespace = IsAnother(root_ + "/proc/self/ns/ipc", kFirstIpcNamespace);
  host.kernel_driver = access((root_ + "/proc/driver/nvidia/version").c_str(), R_OK) == 0;
  host.gpus_of_kernel = static_cast<int>(ListFolder(root_ + "/proc/driver/nvidia/gpus").size());
  for (const std::string& name : ListFolder(root_ + "/dev")) {
    if (IsDeviceFile(name)) ++host.device_files;
  }
}

}  // namespace doctor
}  // namespace hyperframes
