// Pinning under limits, without a GPU: a driver whose pinning is mlock, which the kernel refuses
// beyond RLIMIT_MEMLOCK. Each test is a process of its own, since lowered limits stay.
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "agent/device/cuda/cuda_context.h"
#include "agent/device/cuda/pinned_memory.h"
#include "agent/device/host/host_memory.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

constexpr Bytes kMayLock = 4 * kMiB;

CUresult Succeed() { return CUDA_SUCCESS; }

std::unique_ptr<CudaDriver> LockingDriver() {
  auto driver = std::make_unique<CudaDriver>();
  driver->cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice) {
    *context = nullptr;
    return Succeed();
  };
  driver->cuDevicePrimaryCtxRelease = [](CUdevice) { return Succeed(); };
  driver->cuCtxGetCurrent = [](CUcontext* context) {
    *context = nullptr;
    return Succeed();
  };
  driver->cuMemHostRegister = [](void* data, size_t bytes, unsigned) {
    // Not by the library's mlock, which sanitizers replace by nothing.
    const bool locked = syscall(SYS_mlock, data, bytes) == 0;
    return locked ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  };
  driver->cuMemHostUnregister = [](void*) { return Succeed(); };
  driver->cuGetErrorName = [](CUresult, const char** name) {
    *name = "CUDA_ERROR_OPERATING_SYSTEM";
    return Succeed();
  };
  driver->cuGetErrorString = [](CUresult, const char** text) {
    *text = "an OS call failed";
    return Succeed();
  };
  return driver;
}

// The soft limit, and none of the capabilities that lift it.
bool LowerLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kMayLock);
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && syscall(SYS_capset, &header, none) == 0;
}

absl::Status Pin(Bytes bytes) {
  const std::unique_ptr<CudaDriver> driver = LockingDriver();
  auto context = CudaContext::Retain(driver.get(), 0, "GPU-a").value();
  auto lent = HostMemory::Create("test", bytes, /*budget=*/nullptr).value();
  auto pinned = PinnedMemory::Map(context, dup(lent->descriptor()), bytes, -1).value();
  return pinned->WaitUntilUsable();
}

// Ends the process: 0 where pinning says what it should.
void PinUnderTheLimit(Bytes bytes) {
  if (!LowerLimit()) _exit(2);
  const absl::Status status = Pin(bytes);
  fprintf(stderr, "[%s]", std::string(status.message()).c_str());
  _exit(status.ok() ? 0 : absl::IsResourceExhausted(status) ? 8 : 3);
}

TEST(PinningLimit, WhatMayBeLockedIsPinned) {
  EXPECT_EXIT(PinUnderTheLimit(kMiB), testing::ExitedWithCode(0), "");
}

TEST(PinningLimit, BeyondItNeedLimitAndSettingAreNamed) {
  EXPECT_EXIT(PinUnderTheLimit(16 * kMiB), testing::ExitedWithCode(8),
              "16MiB of host memory cannot be pinned: this process may lock 4MiB .ulimit -l.");
}

}  // namespace
}  // namespace hyperframes
