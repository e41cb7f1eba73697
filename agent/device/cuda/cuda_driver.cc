#include "agent/device/cuda/cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr int kFirstUntriedCapability = 10;

#define HF_SPELLED_(name) #name
#define HF_SPELLED(name) HF_SPELLED_(name)

template <typename Function>
absl::Status Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(kLibrary, " has no ", name, ": the driver is too old; install one for CUDA 12"));
}

struct Meaning {
  absl::StatusCode code;
  const char* remedy;
};

Meaning MeaningOf(CUresult result) {
  using absl::StatusCode;
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return {StatusCode::kResourceExhausted, "ask for fewer bytes, or free some there"};
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
      return {StatusCode::kNotFound, "look at nvidia-smi -L and CUDA_VISIBLE_DEVICES"};
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
      return {StatusCode::kInvalidArgument, "the value was refused by the driver"};
    case CUDA_ERROR_NOT_SUPPORTED:
      return {StatusCode::kUnimplemented, "this GPU or its partition (MIG) cannot do it"};
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_OPERATING_SYSTEM:
      return {StatusCode::kFailedPrecondition,
              "allow it: peer access, shared namespaces of the container, ulimit -l"};
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return {StatusCode::kFailedPrecondition, "the driver does not start: run nvidia-smi"};
    case CUDA_ERROR_DEINITIALIZED:
      return {StatusCode::kFailedPrecondition, "the process is ending"};
    default:
      return {StatusCode::kInternal, "the GPU's context may be broken: restart the process"};
  }
}

absl::StatusOr<const CudaDriver*> OpenOnce() {
  const char* const named = std::getenv("HYPERFRAMES_CUDA_LIBRARY");
  const bool given = named != nullptr && *named != '\0';
  HF_ASSIGN_OR_RETURN(std::unique_ptr<CudaDriver> driver,
                      CudaDriver::Open(given ? named : kLibrary));
  HF_RETURN_IF_ERROR(driver->Check(driver->cuInit(0), "cuInit"));
  return driver.release();  // Lives as long as the process: threads may use it to the end.
}

}  // namespace

absl::StatusOr<const CudaDriver*> CudaDriver::Get() {
  static const auto& driver = *new absl::StatusOr<const CudaDriver*>(OpenOnce());
  return driver;
}

absl::StatusOr<std::unique_ptr<CudaDriver>> CudaDriver::Open(const std::string& library) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("there is no CUDA driver here (", std::string(dlerror()).substr(0, 200),
                     "): install NVIDIA's driver, or use the backend \"host\""));
  }
  auto driver = std::make_unique<CudaDriver>();
#define HF_CUDA_LOAD(name) HF_RETURN_IF_ERROR(Load(opened, HF_SPELLED(name), &driver->name));
  HF_CUDA_FUNCTIONS(HF_CUDA_LOAD)
#undef HF_CUDA_LOAD
  HF_RETURN_IF_ERROR(Load(opened, "cuEventElapsedTime", &driver->event_elapsed_time));
#if CUDA_VERSION >= 12080
  Load(opened, "cuMemcpyBatchAsync_v2", &driver->memcpy_batch).IgnoreError();
  Load(opened, "cuMemcpyBatchAsync", &driver->memcpy_batch_12).IgnoreError();
#endif
  return driver;
}

bool CudaDriver::CanBatch(CUdevice device) const {
#if CUDA_VERSION >= 12080
  if (memcpy_batch == nullptr && memcpy_batch_12 == nullptr) return false;
  int major = 0;
  return cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ==
             CUDA_SUCCESS &&
         major < kFirstUntriedCapability;
#else
  (void)device;
  return false;
#endif
}

CUresult CudaDriver::CopyBatch(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                               CUstream stream) const {
#if CUDA_VERSION >= 12080
  CUmemcpyAttributes attributes = {};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first_copy = 0;
  if (memcpy_batch != nullptr) {
    return memcpy_batch(to, from, bytes, count, &attributes, &first_copy, 1, stream);
  }
  if (memcpy_batch_12 != nullptr) {
    size_t failed = 0;
    return memcpy_batch_12(to, from, bytes, count, &attributes, &first_copy, 1, &failed, stream);
  }
#endif
  (void)to, (void)from, (void)bytes, (void)count, (void)stream;
  return CUDA_ERROR_NOT_SUPPORTED;
}

absl::Status CudaDriver::Check(CUresult result, const char* call,
                               const std::string& subject) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  const Meaning meaning = MeaningOf(result);
  return absl::Status(meaning.code,
                      absl::StrCat(call, subject.empty() ? "" : " of ", subject.substr(0, 160),
                                   " failed: ", name, " (", text, "); ", meaning.remedy));
}

}  // namespace hyperframes
