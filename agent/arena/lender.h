// Allocates memory of real GPUs in a process of its own and takes only the descriptor over. A
// driver that was started keeps a few MiB of every card for its process: this one has none, so an
// agent that lends nothing holds nothing, and a driver that hangs or dies takes no agent along. The
// descriptor alone keeps the memory: when its last holder closes it, it is free.
#ifndef HYPERFRAMES_AGENT_ARENA_LENDER_H_
#define HYPERFRAMES_AGENT_ARENA_LENDER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/gpu_machine.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace hyperframes {

struct LenderOptions {
  // The program and its first arguments; "--socket=3" follows, and serves as ServeLending says.
  std::vector<std::string> command;
  absl::Duration patience = absl::Seconds(10);  // For one answer; then it is killed.
};

// The process, started when it is first asked. It ends with this object. Thread-safe.
class Lender {
 public:
  explicit Lender(LenderOptions options) : options_(std::move(options)) {}
  ~Lender();

  // Codes as Device::Allocate, and: NotFound: it cannot be started; Unavailable: it ended before it
  // answered; DeadlineExceeded: it was killed, for it did not answer in time.
  absl::StatusOr<UniqueFd> Allocate(const std::string& uuid, Bytes bytes) HF_EXCLUDES(mutex_);
  // Whether `descriptor` is memory of that GPU; codes as Device::Adopt and as above.
  absl::Status Check(const std::string& uuid, int descriptor, Bytes bytes) HF_EXCLUDES(mutex_);

 private:
  struct Answer;
  absl::StatusOr<Answer> Ask(uint16_t type, const std::string& uuid, int descriptor, Bytes bytes)
      HF_REQUIRES(mutex_);
  absl::Status Start() HF_REQUIRES(mutex_);
  void End() HF_REQUIRES(mutex_);

  const LenderOptions options_;
  Mutex mutex_;
  UniqueFd socket_ HF_GUARDED_BY(mutex_);
  pid_t process_ HF_GUARDED_BY(mutex_) = 0;
  uint64_t next_sequence_ HF_GUARDED_BY(mutex_) = 1;
};

// The process's side: allocates on the GPUs of `machine` what is asked for on `socket` until its
// other end is closed. Keeps nothing.
void ServeLending(int socket, const GpuMachine& machine);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_LENDER_H_
