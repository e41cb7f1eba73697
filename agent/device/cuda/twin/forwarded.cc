#include "agent/device/cuda/twin/forwarded.h"

#include <dlfcn.h>

#ifndef __x86_64__
#error "the twin's driver passes calls on by a jump that is written for x86-64"
#endif

// By function, where it really is. Arguments stay in their places, whatever they are.
// clang-format off
#define HF_FORWARD(name)                                                             \
  extern "C" {                                                                       \
  __attribute__((visibility("hidden"), used)) void* hf_twin_##name = nullptr;        \
  }                                                                                  \
  asm(".pushsection .text\n.weak " #name "\n.type " #name ",@function\n" #name ":\n" \
      "  jmp *hf_twin_" #name "(%rip)\n.popsection\n");
// clang-format on
#define HF_FORWARD_RENAMED(name) HF_FORWARD(name)
HF_CUDA_FUNCTIONS(HF_FORWARD_RENAMED)
HF_FORWARD(cuEventElapsedTime)
HF_FORWARD(cuMemcpyBatchAsync_v2)
HF_FORWARD(cuMemcpyBatchAsync)

namespace hyperframes {
namespace {

CUresult Missing() { return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; }
CUresult NotSupported() { return CUDA_ERROR_NOT_SUPPORTED; }

// Not through CudaDriver::Open, so that this library needs no other.
const CudaDriver* Found() {
  static CudaDriver driver;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto find = [library](const char* name, CUresult (*missing)() = &Missing) {
    void* const function = library == nullptr ? nullptr : dlsym(library, name);
    return function != nullptr ? function : reinterpret_cast<void*>(missing);
  };
#define HF_FIND(name)           \
  hf_twin_##name = find(#name); \
  driver.name = reinterpret_cast<decltype(driver.name)>(hf_twin_##name);
#define HF_FIND_RENAMED(name) HF_FIND(name)
  HF_CUDA_FUNCTIONS(HF_FIND_RENAMED)
  hf_twin_cuEventElapsedTime = find("cuEventElapsedTime");  // By its old name, as asked for.
  // Newer drivers have one form or both; whoever calls copies one by one without.
  hf_twin_cuMemcpyBatchAsync_v2 = find("cuMemcpyBatchAsync_v2", &NotSupported);
  hf_twin_cuMemcpyBatchAsync = find("cuMemcpyBatchAsync", &NotSupported);
  return &driver;
}

const CudaDriver* const found = Found();  // Before anybody can ask for a function.

}  // namespace

const CudaDriver& RealDriver() { return *found; }

}  // namespace hyperframes
