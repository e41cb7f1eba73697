#include "agent/supervisor/record_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "common/unique_fd.h"

namespace hyperframes {
namespace {

absl::Status SystemError(const char* what, const std::string& path) {
  return absl::UnavailableError(std::string(what) + " " + path + ": " + strerror(errno));
}

bool WriteAll(int descriptor, const std::string& content) {
  size_t written = 0;
  while (written < content.size()) {
    const ssize_t count = write(descriptor, content.data() + written, content.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    written += count;
  }
  return true;
}

}  // namespace

absl::Status WriteRecordFile(const std::string& path, const std::string& content, bool durable) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash);
  // A leading dot keeps a temporary file that a kill left behind out of ListDirectory.
  const std::string temporary = directory + "/." + path.substr(slash + 1) + ".tmp";
  {
    UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file.valid() || !WriteAll(file.get(), content) || (durable && fsync(file.get()) != 0)) {
      return SystemError("cannot write", temporary);
    }
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return SystemError("cannot rename to", path);
  if (durable) {
    UniqueFd parent(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!parent.valid() || fsync(parent.get()) != 0) return SystemError("cannot fsync", directory);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadRecordFile(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT) return absl::NotFoundError("no file " + path);
    return SystemError("cannot read", path);
  }
  std::string content;
  char buffer[4096];
  while (true) {
    const ssize_t count = read(file.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("cannot read", path);
    if (count == 0) return content;
    content.append(buffer, count);
    if (content.size() > kMostRecordBytes) {
      return absl::DataLossError(path + " is larger than a record can be: delete it");
    }
  }
}

absl::Status MakeDirectories(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("an empty directory name");
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return SystemError("cannot make directory", part);
    }
    if (end == std::string::npos) break;
  }
  struct stat made;
  if (stat(path.c_str(), &made) != 0) return SystemError("cannot use directory", path);
  if (!S_ISDIR(made.st_mode)) return absl::UnavailableError(path + " is not a directory");
  return absl::OkStatus();
}

std::vector<std::string> ListDirectory(const std::string& path) {
  std::vector<std::string> names;
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return names;
  while (dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  }
  closedir(directory);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace hyperframes
