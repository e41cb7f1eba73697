// The checksums of verify mode: absl's 64-bit hash, at several GB/s. Its seed changes from process
// to process, which is no loss: both ends of a comparison are in this one.
#ifndef HYPERFRAMES_AGENT_ENGINE_CHECKSUM_H_
#define HYPERFRAMES_AGENT_ENGINE_CHECKSUM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/device/device.h"
#include "common/mutex.h"
#include "common/units.h"

namespace hyperframes {

// Makes them of one device's memory: where the processor cannot read that, it is copied out piece
// by piece. Stops the caller for as long as it takes, so verify is for looking, not for training.
// Thread-safe.
class Checksums {
 public:
  static absl::StatusOr<std::unique_ptr<Checksums>> Create(Device* device);

  // Of `bytes` at `data`, once `written` is done; it is waited for.
  absl::StatusOr<uint64_t> Of(const void* data, Bytes bytes, const Event& written)
      HF_EXCLUDES(mutex_);

 private:
  explicit Checksums(std::unique_ptr<Stream> lane) : lane_(std::move(lane)) {}

  const std::unique_ptr<Stream> lane_;  // Null: the processor reads that memory itself.
  Mutex mutex_;
  std::vector<char> piece_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_CHECKSUM_H_
