#include "agent/device/host/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/host_limits.h"

namespace hyperframes {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status SystemError(const char* call, Bytes bytes) {
  if (errno == ENOMEM || errno == ENOSPC) {
    return absl::ResourceExhaustedError(absl::StrCat(FormatBytes(bytes), " of host memory: ", call,
                                                     " was refused; ",
                                                     WhyNotPinned(bytes, ReadHostLimits())));
  }
  return absl::InternalError(absl::StrCat(call, " for ", FormatBytes(bytes),
                                          " of shared memory failed: ", std::strerror(errno)));
}

absl::StatusOr<char*> MapShared(int descriptor, Bytes bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, /*offset=*/0);
  if (data == MAP_FAILED) return SystemError("mmap", bytes);
  // A data loader that forks must not keep lent memory alive.
  if (madvise(data, bytes, MADV_DONTFORK) != 0) {
    const absl::Status status = SystemError("madvise(MADV_DONTFORK)", bytes);
    munmap(data, bytes);
    return status;
  }
  return static_cast<char*>(data);
}

}  // namespace

bool MemoryBudget::Take(Bytes bytes, Bytes* free) {
  MutexLock lock(&mutex_);
  *free = total_ - used_;
  if (bytes > *free) return false;
  used_ += bytes;
  return true;
}

void MemoryBudget::GiveBack(Bytes bytes) {
  MutexLock lock(&mutex_);
  used_ -= bytes;
}

Bytes MemoryBudget::free_bytes() const {
  MutexLock lock(&mutex_);
  return total_ - used_;
}

absl::StatusOr<std::unique_ptr<Memory>> HostMemory::Create(const std::string& name, Bytes bytes,
                                                           std::shared_ptr<MemoryBudget> budget) {
  const int descriptor = memfd_create(absl::StrCat("hyperframes:", name.substr(0, 64)).c_str(),
                                      MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return SystemError("memfd_create", bytes);
  auto close_descriptor = absl::MakeCleanup([descriptor] { close(descriptor); });
  if (ftruncate(descriptor, bytes) != 0) return SystemError("ftruncate", bytes);
  if (fcntl(descriptor, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return SystemError("fcntl(F_ADD_SEALS)", bytes);
  }
  absl::StatusOr<char*> data = MapShared(descriptor, bytes);
  if (!data.ok()) return data.status();
  std::move(close_descriptor).Cancel();
  return std::unique_ptr<Memory>(new HostMemory(*data, bytes, descriptor, std::move(budget)));
}

absl::StatusOr<std::unique_ptr<Memory>> HostMemory::Map(int descriptor, Bytes bytes,
                                                        std::shared_ptr<MemoryBudget> budget) {
  auto close_descriptor = absl::MakeCleanup([descriptor] {
    if (descriptor >= 0) close(descriptor);
  });
  struct stat file = {};
  if (descriptor < 0 || fstat(descriptor, &file) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot map descriptor ", descriptor, ": it is not an open file"));
  }
  if (bytes <= 0 || file.st_size != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot map descriptor ", descriptor, ": it holds ", file.st_size,
                     " bytes and ", bytes, " were expected; ask its lender for the lease's size"));
  }
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot map descriptor ", descriptor,
                     ": it is not a memfd sealed against shrinking and growing, so its owner could "
                     "end this process by truncating it"));
  }
  absl::StatusOr<char*> data = MapShared(descriptor, bytes);
  if (!data.ok()) return data.status();
  std::move(close_descriptor).Cancel();
  return std::unique_ptr<Memory>(new HostMemory(*data, bytes, descriptor, std::move(budget)));
}

HostMemory::~HostMemory() {
  munmap(data_, bytes_);
  close(descriptor_);
  if (budget_ != nullptr) budget_->GiveBack(bytes_);
}

}  // namespace hyperframes
