// Work on a GPU's default stream, where a test stands for the program that computes.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_DEFAULT_STREAM_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_DEFAULT_STREAM_H_

#include "absl/status/status.h"
#include "agent/device/device.h"
#include "common/units.h"

namespace hyperframes {

// Queues a fill of memory that `gpu` can reach, and returns.
absl::Status DefaultStreamFill(const Device& gpu, void* data, char value, Bytes bytes);

// Copies what is at `data` once the default stream's earlier work is done, and waits for it.
absl::Status DefaultStreamRead(const Device& gpu, const void* data, void* to, Bytes bytes);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_DEFAULT_STREAM_H_
