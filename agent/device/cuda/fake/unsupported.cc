// Everything of the driver's table that fake_driver.cc does not define: weak, and refused.
#include "agent/device/cuda/cuda_driver.h"

extern "C" __attribute__((used)) CUresult hf_fake_unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

#define HF_SPELLED_(name) #name
#define HF_SPELLED(name) HF_SPELLED_(name)
#define HF_UNSUPPORTED(name) \
  asm(".weak " HF_SPELLED(name) "\n.set " HF_SPELLED(name) ", hf_fake_unsupported\n");
HF_CUDA_FUNCTIONS(HF_UNSUPPORTED)
asm(".weak cuEventElapsedTime\n.set cuEventElapsedTime, hf_fake_unsupported\n");
