#include "agent/device/cuda/fake/fake_gpus.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <set>

namespace hyperframes {
namespace {

std::string Described() {
  const char* const text = getenv("HYPERFRAMES_FAKE_GPUS");
  return text == nullptr ? "0" : text;
}

template <typename Visit>
void ForEachEntry(const std::string& folder, Visit visit) {
  DIR* const opened = opendir(folder.c_str());
  if (opened == nullptr) return;
  while (const dirent* const entry = readdir(opened)) {
    if (entry->d_name[0] != '.') visit(std::string(entry->d_name));
  }
  closedir(opened);
}

}  // namespace

long long FakeNow() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

int FakeGpuCount() { return std::min(atoi(Described().c_str()), kMostFakeGpus); }

bool FakeGpusAre(const std::string& word) {
  return ("," + Described() + ",").find("," + word + ",") != std::string::npos;
}

std::string FakeUuid(int index) {
  char uuid[64];
  snprintf(uuid, sizeof(uuid), "%s-00000000-0000-0000-0000-0000000000%02x",
           FakeGpusAre("partitioned") ? "MIG" : "GPU", FakeUuidByte(index));
  return uuid;
}

std::string FakeMemoryName(int index) {
  const char* const machine = getenv("HYPERFRAMES_FAKE_MACHINE");
  return "fake-gpu-" + std::string(machine == nullptr ? "" : machine) + "-" + std::to_string(index);
}

long long FakeFreeBytes(int index) {
  const std::string mark = "/memfd:" + FakeMemoryName(index) + " (deleted)";
  std::set<ino_t> seen;
  const char* const occupied = getenv("HYPERFRAMES_FAKE_OCCUPIED");
  long long used = occupied == nullptr ? 0 : atoll(occupied);
  ForEachEntry("/proc", [&](const std::string& pid) {
    if (pid.find_first_not_of("0123456789") != std::string::npos) return;
    const std::string folder = "/proc/" + pid + "/fd";
    ForEachEntry(folder, [&](const std::string& descriptor) {
      char target[128] = "";
      const std::string path = folder + "/" + descriptor;
      if (readlink(path.c_str(), target, sizeof(target) - 1) < 0 || mark != target) return;
      struct stat file;
      if (stat(path.c_str(), &file) == 0 && seen.insert(file.st_ino).second) used += file.st_size;
    });
  });
  return kFakeTotalBytes - used;
}

}  // namespace hyperframes
