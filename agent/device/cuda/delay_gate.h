// Idle time on a stream, for chaos mode. The stream tells a thread of ours that it has arrived, and
// waits, on the GPU's front end, for the word that the thread releases after the delay.
//
// Not by a host function: the driver runs those of all streams on one thread, so that a delay on
// one lane would hold back the others, and the very reordering that chaos mode looks for could not
// happen. Not by a spinning kernel: it would take multiprocessors from the program.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_DELAY_GATE_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_DELAY_GATE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/cuda/cuda_context.h"
#include "common/mutex.h"
#include "common/shared_word.h"

namespace hyperframes {

// One per stream. Thread-safe. The stream has finished its work before this is destroyed.
class DelayGate {
 public:
  static absl::StatusOr<std::unique_ptr<DelayGate>> Create(
      std::shared_ptr<const CudaContext> context, CUstream stream);
  ~DelayGate();

  // Queues `delay` of idle time. Unimplemented: the GPU's streams cannot wait for words in memory.
  absl::Status Queue(absl::Duration delay) HF_EXCLUDES(queueing_, mutex_);

 private:
  struct Words {  // In pinned memory; the stream writes the first and reads the second.
    SharedWord arrived{0};
    SharedWord released{0};
  };
  struct Pending {
    uint32_t number;
    absl::Duration delay;
  };

  DelayGate(std::shared_ptr<const CudaContext> context, CUstream stream, Words* words);
  void Run();

  const std::shared_ptr<const CudaContext> context_;
  const CUstream stream_;
  Words* const words_;
  // Held while queueing, so that the numbers ascend on the stream as they do here. The thread never
  // takes it: the driver lets whoever fills the stream's queue wait until the stream goes on, and
  // what makes it go on is the thread.
  Mutex queueing_ HF_ACQUIRED_BEFORE(mutex_);
  Mutex mutex_;
  CondVar changed_;
  uint32_t queued_ HF_GUARDED_BY(mutex_) = 0;
  std::deque<Pending> pending_ HF_GUARDED_BY(mutex_);
  bool closing_ HF_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: starts when everything above is ready.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_DELAY_GATE_H_
