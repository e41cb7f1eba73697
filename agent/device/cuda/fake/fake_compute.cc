// What a borrower calls of CUDA's driver: contexts, mappings, streams and copies, on memory of the
// machine. Only where fake_gpus.h's description says so can a context be made.
#include <cuda.h>
#include <string.h>
#include <sys/mman.h>

#include <cstdint>
#include <vector>

#include "agent/device/cuda/fake/fake_gpus.h"

using hyperframes::FakeNow;
using hyperframes::FakeStream;

// fake_driver.cc's: of the memfd behind an allocation; -1: there is none.
extern "C" int hf_fake_descriptor(CUmemGenericAllocationHandle handle);

namespace {

struct FakeEvent {
  long long done_at_ns = 0;
};

thread_local std::vector<CUcontext> contexts;

// NOLINTNEXTLINE(performance-no-int-to-ptr)
void* PointerOf(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
FakeStream* StreamOf(CUstream stream) {
  static FakeStream default_stream;
  return stream != nullptr ? reinterpret_cast<FakeStream*>(stream) : &default_stream;
}
FakeEvent* EventOf(CUevent event) { return reinterpret_cast<FakeEvent*>(event); }

}  // namespace

extern "C" {

CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  void* const reserved =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(reserved);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  const int descriptor = hf_fake_descriptor(handle);
  if (descriptor < 0) return CUDA_ERROR_INVALID_HANDLE;
  void* const mapped = mmap(PointerOf(address), bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED, descriptor, 0);
  return mapped == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return munmap(PointerOf(address), bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemHostRegister(void*, size_t, unsigned) { return CUDA_SUCCESS; }
CUresult cuMemHostUnregister(void*) { return CUDA_SUCCESS; }

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(new FakeStream());
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  delete StreamOf(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }

CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(new FakeEvent());
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  delete EventOf(event);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  EventOf(event)->done_at_ns = StreamOf(stream)->busy_until_ns;
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  return FakeNow() >= EventOf(event)->done_at_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  while (cuEventQuery(event) != CUDA_SUCCESS) {
  }
  return CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  memcpy(PointerOf(to), PointerOf(from), bytes);
  return CUDA_SUCCESS;
}

}  // extern "C"
