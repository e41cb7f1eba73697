#include "agent/device/cuda/cuda_context.h"

#include <utility>

#include "common/status_macros.h"

namespace hyperframes {

absl::StatusOr<std::shared_ptr<const CudaContext>> CudaContext::Retain(const CudaDriver* driver,
                                                                       CUdevice device,
                                                                       std::string uuid) {
  CUcontext context = nullptr;
  HF_CUDA_RETURN_IF_ERROR(*driver, uuid, cuDevicePrimaryCtxRetain, &context, device);
  return std::shared_ptr<const CudaContext>(
      new CudaContext(driver, device, context, std::move(uuid)));
}

CudaContext::~CudaContext() { driver_->cuDevicePrimaryCtxRelease(device_); }

}  // namespace hyperframes
