// What the fake driver says of itself and of its devices, which are GPUs of fake_gpus.h.
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "agent/device/cuda/fake/fake_contexts.h"
#include "agent/device/cuda/fake/fake_gpus.h"

using hyperframes::FakeGpusAre;
using hyperframes::IndexOfFakeGpu;

extern "C" {

CUresult cuInit(unsigned) {
  if (FakeGpusAre("broken")) return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  return hyperframes::StartFakeDriver() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "a fake driver's error";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  if (!hyperframes::FakeDriverIsReady()) return CUDA_ERROR_NOT_INITIALIZED;
  *count = hyperframes::VisibleFakeGpus();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!hyperframes::FakeDriverIsReady()) return CUDA_ERROR_NOT_INITIALIZED;
  *device = ordinal;
  return IndexOfFakeGpu(ordinal) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  memset(uuid, 0, sizeof(*uuid));
  uuid->bytes[15] = static_cast<char>(hyperframes::FakeUuidByte(IndexOfFakeGpu(device)));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  snprintf(name, static_cast<size_t>(size),
           FakeGpusAre("partitioned") ? "Fake MIG 1g" : "Fake GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = hyperframes::kFakeTotalBytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const bool exports = attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
  *value = exports && FakeGpusAre("private") ? 0 : 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute, CUdevice from, CUdevice to) {
  *value = FakeGpusAre("apart") ? 0 : 1;
  const bool are_two = from != to && IndexOfFakeGpu(from) >= 0 && IndexOfFakeGpu(to) >= 0;
  return are_two ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // extern "C"
