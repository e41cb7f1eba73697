#include "client/doctor/host_facts.h"

#include <dirent.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/host_limits.h"

namespace hyperframes {
namespace doctor {
namespace {

// include/linux/proc_ns.h: the inodes of the namespaces that the machine itself lives in.
constexpr const char* kFirstPidNamespace = "pid:[4026531836]";
constexpr const char* kFirstIpcNamespace = "ipc:[4026531839]";

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
  const HostLimits limits = ReadHostLimits(root_);
  host.is_root = limits.locks_all;
  host.memlock = limits.memlock;
  struct statvfs shared = {};
  if (statvfs((root_ + "/dev/shm").c_str(), &shared) == 0) {
    host.shared_memory_bytes = static_cast<Bytes>(shared.f_blocks * shared.f_frsize);
  }
  host.available_bytes = limits.available.value_or(0);
  host.memory_limit = limits.group_limit;
  host.memory_used = limits.group_used;
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
