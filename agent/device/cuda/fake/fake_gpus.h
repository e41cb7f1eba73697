// A driver and an NVML of GPUs that do not exist, as two shared libraries with the real ones'
// names: what an agent does on a GPU machine is tested where there is none. Memory is a memfd, so
// that its descriptors pass between processes and outlive their makers as the real ones do; NVML
// counts every such memfd that some process of the machine holds. Nothing computes here, but copies
// are made where the GPUs are said to have contexts. What the real driver refuses is refused, and
// what it leaves undefined ends the process. CUDA_VISIBLE_DEVICES counts for CUDA, not for NVML.
//
// HYPERFRAMES_FAKE_GPUS describes them: "2" GPUs, with words behind it: "2,partitioned" (MIG),
// "2,private" (memory cannot be exported), "2,broken" (the driver does not start), "2,contexts"
// (contexts, streams and copies work; else making a context is refused), "2,nvlinks" (all behind a
// switch), "4,nvlinks,bridges" (each joined to one other), "2,apart" (no peer access),
// "2,unbatched" (copies go one by one only). HYPERFRAMES_FAKE_MACHINE: a name; processes with the
// same one have the same GPUs. HYPERFRAMES_FAKE_OCCUPIED: bytes that somebody else uses on each.
// HYPERFRAMES_FAKE_FAULT: a file; once it is there, with "index xid" in it, NVML tells of that
// fault. HYPERFRAMES_FAKE_LOG: a file that gets a line for every call that makes a context.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_FAKE_FAKE_GPUS_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_FAKE_FAKE_GPUS_H_

#include <atomic>
#include <string>

namespace hyperframes {

constexpr long long kFakeTotalBytes = 8ll << 30;
constexpr long long kFakeGranule = 2ll << 20;
constexpr int kMostFakeGpus = 16;

// What a CUstream of the fake driver points to. Whoever uses the stream in another library says
// until when it is busy.
struct FakeStream {
  std::atomic<long long> busy_until_ns{0};  // Of CLOCK_MONOTONIC.
};
long long FakeNow();

// As nvidia-smi counts them. CUDA counts the other way round.
int FakeGpuCount();
bool FakeGpusAre(const std::string& word);
// The last byte of its UUID; the others are 0.
inline int FakeUuidByte(int index) { return index + 1; }
// "GPU-00000000-0000-0000-0000-000000000001" and so on.
std::string FakeUuid(int index);
// Of the memfds behind its memory.
std::string FakeMemoryName(int index);
// Free bytes of the GPU, whoever holds the rest.
long long FakeFreeBytes(int index);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_FAKE_FAKE_GPUS_H_
