#include "common/unique_fd.h"

#include <cerrno>

namespace hyperframes {

void UniqueFd::reset(int fd) {
  const int old = std::exchange(fd_, fd);
  if (old < 0) return;
  const int saved = errno;
  // Never retried on EINTR: Linux has closed it already, and the number may be another file's now.
  close(old);
  errno = saved;
}

}  // namespace hyperframes
