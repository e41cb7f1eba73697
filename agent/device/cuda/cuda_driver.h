// CUDA's driver, opened at run time: nothing here is linked, so the same binary starts on machines
// without a GPU. One table of the functions that this room needs, and one place that turns their
// error codes into sentences.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_DRIVER_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_DRIVER_H_

#include <cuda.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hyperframes {

// cuda.h renames functions to their current versions by macros; members and symbols follow suit.
// clang-format off
#define HF_CUDA_FUNCTIONS(X)                                                                   \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString)                        \
  X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid) X(cuDeviceGetName) X(cuDeviceTotalMem) \
  X(cuDeviceGetAttribute) X(cuDeviceGetPCIBusId) X(cuDeviceGetP2PAttribute)                    \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)                                     \
  X(cuCtxGetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent)                                    \
  X(cuMemCreate) X(cuMemRelease) X(cuMemGetAllocationGranularity)                              \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)                            \
  X(cuMemGetAllocationPropertiesFromHandle)                                                    \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)       \
  X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostAlloc) X(cuMemFreeHost)               \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamWaitEvent)             \
  X(cuStreamWaitValue32) X(cuStreamWriteValue32)                                               \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)    \
  X(cuMemcpyAsync) X(cuMemsetD8Async)
// clang-format on

// Immutable once opened; thread-safe as the driver is.
struct CudaDriver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration cannot stand in parentheses.
#define HF_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  HF_CUDA_FUNCTIONS(HF_CUDA_MEMBER)
#undef HF_CUDA_MEMBER
  // By its old name: the one that CUDA 12.8 renamed does the same, and older drivers lack it.
  CUresult (*event_elapsed_time)(float* milliseconds, CUevent start, CUevent end) = nullptr;

  // Several copies by one call, from CUDA 12.8 on: CUDA 13 has left the failed copy's index away.
  // Null: this driver has no such call, or not of this form.
#if CUDA_VERSION >= 12080
  CUresult (*memcpy_batch)(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                           CUmemcpyAttributes* attributes, size_t* first_copies,
                           size_t attribute_count, CUstream stream) = nullptr;
  CUresult (*memcpy_batch_12)(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                              CUmemcpyAttributes* attributes, size_t* first_copies,
                              size_t attribute_count, size_t* failed, CUstream stream) = nullptr;
#endif

  // Whether CopyBatch is worth a try for copies of `device`. Not on Blackwell and later, where
  // others have seen driver 580 crash and hang in it; before, it was measured on an H200.
  bool CanBatch(CUdevice device) const;
  // Copies of any order, each read in stream order. `stream` is none of the default streams, which
  // the driver refuses. CUDA_ERROR_NOT_SUPPORTED: the driver has no such call.
  CUresult CopyBatch(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                     CUstream stream) const;

  // The process's driver, opened and initialised at the first call: HYPERFRAMES_CUDA_LIBRARY, else
  // libcuda.so.1. NotFound: no driver, or no GPU; FailedPrecondition: a driver that is too old or
  // does not start. The same answer every time.
  static absl::StatusOr<const CudaDriver*> Get();

  // Opens `library` without initialising it. NotFound: it cannot be loaded; FailedPrecondition: a
  // function is missing.
  static absl::StatusOr<std::unique_ptr<CudaDriver>> Open(const std::string& library);

  // OK, or an error that names `call`, `subject` (a GPU, a size) and a remedy:
  // ResourceExhausted for memory, NotFound for devices, InvalidArgument for refused values,
  // FailedPrecondition for what the machine does not allow, Unimplemented for what it cannot do,
  // Internal when the context is broken.
  absl::Status Check(CUresult result, const char* call, const std::string& subject = "") const;
};

}  // namespace hyperframes

// Calls a function of the table; returns from the enclosing function unless it succeeds.
#define HF_CUDA_RETURN_IF_ERROR(driver, subject, function, ...) \
  HF_RETURN_IF_ERROR((driver).Check((driver).function(__VA_ARGS__), #function, (subject)))

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_DRIVER_H_
