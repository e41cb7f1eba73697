#include "agent/device/cuda/default_stream.h"

#include "agent/device/cuda/cuda_context.h"
#include "agent/device/cuda/cuda_device.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

absl::StatusOr<std::shared_ptr<const CudaContext>> ContextOf(const Device& gpu) {
  HF_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Get());
  return CudaContext::Retain(driver, static_cast<const CudaDevice&>(gpu).device(),
                             gpu.description().uuid);
}

}  // namespace

absl::Status DefaultStreamFill(const Device& gpu, void* data, char value, Bytes bytes) {
  HF_ASSIGN_OR_RETURN(const auto context, ContextOf(gpu));
  const CurrentContext current(*context);
  HF_CUDA_RETURN_IF_ERROR(context->driver(), context->uuid(), cuMemsetD8Async,
                          reinterpret_cast<CUdeviceptr>(data), static_cast<unsigned char>(value),
                          static_cast<size_t>(bytes), /*hStream=*/nullptr);
  return absl::OkStatus();
}

absl::Status DefaultStreamRead(const Device& gpu, const void* data, void* to, Bytes bytes) {
  HF_ASSIGN_OR_RETURN(const auto context, ContextOf(gpu));
  const CurrentContext current(*context);
  HF_CUDA_RETURN_IF_ERROR(context->driver(), context->uuid(), cuMemcpyAsync,
                          reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(data),
                          static_cast<size_t>(bytes), /*hStream=*/nullptr);
  HF_CUDA_RETURN_IF_ERROR(context->driver(), context->uuid(), cuStreamSynchronize, nullptr);
  return absl::OkStatus();
}

}  // namespace hyperframes
