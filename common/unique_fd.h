// A file descriptor with one owner.
#ifndef HYPERFRAMES_COMMON_UNIQUE_FD_H_
#define HYPERFRAMES_COMMON_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace hyperframes {

// Closes on destruction. Move-only; a moved-from object owns nothing. errno is preserved.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  // -1 when it owns nothing.
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives ownership away.
  int release() { return std::exchange(fd_, -1); }
  // Closes what it owns and takes `fd`.
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_UNIQUE_FD_H_
