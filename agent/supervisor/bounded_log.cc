#include "agent/supervisor/bounded_log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace hyperframes {
namespace {

// So much is taken in one call that signals are never long unheard.
constexpr int kMostReads = 64;

}  // namespace

absl::StatusOr<BoundedLog> BoundedLog::Open(const std::string& path, Bytes limit) {
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  struct stat status;
  if (!file.valid() || fstat(file.get(), &status) != 0) {
    return absl::UnavailableError("cannot open log " + path + ": " + strerror(errno));
  }
  return BoundedLog(std::move(file), status.st_size, limit);
}

bool BoundedLog::Write(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t count = write(file_.get(), data, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    data += count;
    size -= count;
    size_ += count;
  }
  return true;
}

bool BoundedLog::Drain(int pipe) {
  char buffer[16384];
  for (int i = 0; i < kMostReads; ++i) {
    const ssize_t count = read(pipe, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    if (count == 0) return false;
    if (closed_) continue;
    const Bytes room = std::max<Bytes>(limit_ - size_, 0);
    const Bytes taken = std::min<Bytes>(count, room);
    const bool written = Write(buffer, taken);
    if (!written || taken < count) {
      closed_ = true;
      AddLine(written ? "the log's limit of " + FormatBytes(limit_) +
                            " is reached: what follows is not kept"
                      : std::string("the log cannot be written (") + strerror(errno) +
                            "): what follows is not kept");
    }
  }
  return true;
}

void BoundedLog::AddLine(const std::string& line) {
  const std::string text = "\nhyperframes: " + line + "\n";
  Write(text.data(), text.size());
}

}  // namespace hyperframes
