#include "agent/device/cuda/twin/twin_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace hyperframes {
namespace {

constexpr unsigned long long kMostBytes = 64ull << 30;
constexpr const char* kReady = "held-";  // Names before the lock is taken begin otherwise.

std::string Directory() {
  const char* const named = getenv("HYPERFRAMES_TWIN_DIRECTORY");
  const char* const test = getenv("TEST_TMPDIR");
  std::string folder = named != nullptr  ? named
                       : test != nullptr ? std::string(test) + "/twin"
                                         : "/dev/shm/hyperframes-twin-" + std::to_string(getuid());
  mkdir(folder.c_str(), 0700);
  return folder;
}

}  // namespace

unsigned long long TwinBytes(unsigned long long total) {
  const char* const given = getenv("HYPERFRAMES_TWIN_BYTES");
  const unsigned long long wanted = given != nullptr ? strtoull(given, nullptr, 10) : kMostBytes;
  return std::min(wanted, total / 2);
}

std::string TwinUuid(const std::string& uuid) {
  std::string twin = uuid;
  const size_t at = uuid.find('-') + 1;  // "GPU-8-4-4-4-12".
  if (at + 2 > uuid.size()) return uuid;
  const auto first = strtoul(uuid.substr(at, 2).c_str(), nullptr, 16);
  char other[3] = "";
  snprintf(other, sizeof(other), "%02lx", (first ^ kTwinMark) & 0xff);
  return twin.replace(at, 2, other);
}

int HoldTwinMemory(unsigned long long bytes) {
  const std::string folder = Directory();
  std::string path = folder + "/new-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return -1;
  const std::string ready = folder + "/" + kReady + std::to_string(bytes) + "-" +
                            path.substr(path.size() - 6) + std::to_string(getpid());
  if (flock(file, LOCK_EX) == 0 && rename(path.c_str(), ready.c_str()) == 0) return file;
  close(file);
  return -1;
}

unsigned long long HeldTwinMemory() {
  unsigned long long held = 0;
  const std::string folder = Directory();
  DIR* const opened = opendir(folder.c_str());
  if (opened == nullptr) return 0;
  while (const dirent* const entry = readdir(opened)) {
    const std::string name = entry->d_name;
    if (name.rfind(kReady, 0) != 0) continue;
    const int file = openat(dirfd(opened), entry->d_name, O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;  // Another one has just found out that it is free.
    if (flock(file, LOCK_SH | LOCK_NB) != 0) {
      held += strtoull(name.c_str() + std::string(kReady).size(), nullptr, 10);
    } else {
      unlinkat(dirfd(opened), entry->d_name, 0);
    }
    close(file);
  }
  closedir(opened);
  return held;
}

}  // namespace hyperframes
