// The real driver behind the twin's. What twin_driver.cc does not define goes there unchanged.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_TWIN_FORWARDED_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_TWIN_FORWARDED_H_

#include "agent/device/cuda/cuda_driver.h"

namespace hyperframes {

// What it lacks, or all where there is none, answers CUDA_ERROR_SYSTEM_DRIVER_MISMATCH.
const CudaDriver& RealDriver();

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_TWIN_FORWARDED_H_
