// What node-to-node transfers are compared with: the same bytes, in the same settings, by nothing
// but the transport's own calls: ncclSend and ncclRecv between two processes, or a bare TCP socket
// between two threads.
#ifndef HYPERFRAMES_TESTS_BENCH_PLAIN_TRANSFER_H_
#define HYPERFRAMES_TESTS_BENCH_PLAIN_TRANSFER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/units.h"

namespace hyperframes {

// Seconds for one round of `count` times `bytes`, one way and then the other.
struct PlainRound {
  double out_s = 0;
  double back_s = 0;
};

class PlainTransfer {
 public:
  virtual ~PlainTransfer() = default;
  virtual absl::StatusOr<PlainRound> Measure(Bytes bytes, int count) = 0;
};

absl::StatusOr<std::unique_ptr<PlainTransfer>> StartPlainTcp();

struct PlainNcclOptions {
  std::string self;  // This program, whose Main hands --plain-peer to RunPlainNcclPeer.
  std::string nccl_library;
  std::string near_gpu;  // UUIDs.
  std::string far_gpu;
  Bytes most_bytes = 0;
};
// Unimplemented: a build without CUDA.
absl::StatusOr<std::unique_ptr<PlainTransfer>> StartPlainNccl(const PlainNcclOptions& options);

// The other process of it, on options.far_gpu; `id` is the communicator's, in hex. Serves what
// comes on descriptor 3 until that ends.
absl::Status RunPlainNcclPeer(const std::string& id, const PlainNcclOptions& options);

}  // namespace hyperframes

#endif  // HYPERFRAMES_TESTS_BENCH_PLAIN_TRANSFER_H_
