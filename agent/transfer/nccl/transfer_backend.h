// What hftransfer runs on: the device of its GPU and the transports that fit it. Needs no toolkit
// to include; a build without one, and a machine without GPUs, have the host backend only.
#ifndef HYPERFRAMES_AGENT_TRANSFER_NCCL_TRANSFER_BACKEND_H_
#define HYPERFRAMES_AGENT_TRANSFER_NCCL_TRANSFER_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/device.h"
#include "agent/transfer/transport_maker.h"
#include "common/units.h"

namespace hyperframes {

struct TransferBackendOptions {
  std::string backend = "host";                 // Or "cuda".
  std::string gpu;                              // UUID.
  absl::Duration deadline = absl::Seconds(10);  // Of a piece, on NCCL.
  Bytes bandwidth = 0;       // Of a simulated network, each way; 0: as fast as memory.
  std::string nccl_library;  // Path; empty: see NcclLibrary::Open.
  std::string nccl_folder;   // Where torch keeps its own.
};

// Thread-safe: nothing changes after Open.
class TransferBackend {
 public:
  // InvalidArgument: no such backend; NotFound: no such GPU, no driver or no NCCL; Unimplemented: a
  // build without CUDA.
  static absl::StatusOr<std::unique_ptr<TransferBackend>> Open(
      const TransferBackendOptions& options);
  virtual ~TransferBackend() = default;

  virtual Device* device() = 0;
  virtual TransportMaker* transports() = 0;
};

// As Open, for "cuda".
absl::StatusOr<std::unique_ptr<TransferBackend>> OpenCudaBackend(
    const TransferBackendOptions& options);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_NCCL_TRANSFER_BACKEND_H_
