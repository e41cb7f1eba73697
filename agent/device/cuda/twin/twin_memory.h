// One GPU seen as two, for tests alone. libtwin-cuda.so and libtwin-nvml.so stand between this
// project and the real libraries (HYPERFRAMES_CUDA_LIBRARY, HYPERFRAMES_NVML_LIBRARY name them) and
// tell of a second GPU, the twin, which is the machine's first one under another UUID. Memory of
// the twin is memory of that GPU; copies between the two are copies inside it. So bits, bytes and
// lifetimes are the real ones, and times mean nothing. Other libraries in the process, torch's
// among them, see the real GPU alone. CUDA_VISIBLE_DEVICES counts: 0 and 1, or the UUIDs.
//
// The twin has HYPERFRAMES_TWIN_BYTES of the GPU's memory (64 GiB, or half of it where that is
// less), and the GPU itself is told as that much smaller. In use on the twin is what was created on
// it and somebody still holds; all else that is in use, contexts too, counts on the GPU itself.
//
// Who holds memory of the twin holds an open file of HYPERFRAMES_TWIN_DIRECTORY, locked, that names
// its bytes: the process that made or mapped it, and its exported descriptor, wherever that is on
// its way. The kernel lets go of the lock with the last of them, however that one ended.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_TWIN_TWIN_MEMORY_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_TWIN_TWIN_MEMORY_H_

#include <string>

namespace hyperframes {

// Of a GPU with `total` bytes, what the twin has.
unsigned long long TwinBytes(unsigned long long total);

// The twin's UUID, in text, from the GPU's own: the first byte is another one.
constexpr unsigned char kTwinMark = 0xff;
std::string TwinUuid(const std::string& uuid);

// Notes `bytes` as held until the last duplicate of the descriptor is closed; -1 with errno set.
int HoldTwinMemory(unsigned long long bytes);

// What somebody on this machine holds.
unsigned long long HeldTwinMemory();

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_TWIN_TWIN_MEMORY_H_
