// The primary context of one GPU: the one that the training program's framework uses too. Never a
// context of our own, and none at all on GPUs that only lend.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_CONTEXT_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_CONTEXT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/device/cuda/cuda_driver.h"

namespace hyperframes {

// Shared by everything that needs the context; released with the last of them. Thread-safe.
class CudaContext {
 public:
  // Retains the primary context of `device`, creating it if the program has not yet.
  static absl::StatusOr<std::shared_ptr<const CudaContext>> Retain(const CudaDriver* driver,
                                                                   CUdevice device,
                                                                   std::string uuid);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  CUcontext context() const { return context_; }
  CUdevice device() const { return device_; }
  const std::string& uuid() const { return uuid_; }

 private:
  CudaContext(const CudaDriver* driver, CUdevice device, CUcontext context, std::string uuid)
      : driver_(driver), device_(device), context_(context), uuid_(std::move(uuid)) {}

  const CudaDriver* const driver_;
  const CUdevice device_;
  const CUcontext context_;
  const std::string uuid_;
};

// Makes the context current on this thread for as long as it lives, and leaves the thread as it
// was: a framework's thread may be computing on another GPU, a collector's thread on none.
class CurrentContext {
 public:
  explicit CurrentContext(const CudaContext& context) : driver_(context.driver()) {
    CUcontext current = nullptr;
    if (driver_.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context.context()) return;
    pushed_ = driver_.cuCtxPushCurrent(context.context()) == CUDA_SUCCESS;
  }
  ~CurrentContext() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.cuCtxPopCurrent(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const CudaDriver& driver_;
  bool pushed_ = false;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_CONTEXT_H_
