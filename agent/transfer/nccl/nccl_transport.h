// GPUs' transport: one NCCL communicator of two ranks and one stream for each direction of a lease.
#ifndef HYPERFRAMES_AGENT_TRANSFER_NCCL_NCCL_TRANSPORT_H_
#define HYPERFRAMES_AGENT_TRANSFER_NCCL_NCCL_TRANSPORT_H_

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/cuda/cuda_context.h"
#include "agent/device/nccl/nccl_library.h"
#include "agent/transfer/transport.h"
#include "common/mutex.h"

namespace hyperframes {

// The communicator is a non-blocking one, so that whatever it is doing it can be aborted; every
// wait is a look at it every few microseconds, with the deadline in view.
class NcclTransport final : public Transport {
 public:
  // Both ranks (0 near, 1 far) call it with the same id. Unavailable: the other one did not within
  // `deadline`, which is also what each piece may take. `library` outlives the transport.
  static absl::StatusOr<std::unique_ptr<NcclTransport>> Create(
      const NcclLibrary* library, std::shared_ptr<const CudaContext> context, const NcclId& id,
      int rank, absl::Duration deadline);
  ~NcclTransport() override;  // Aborts.

  absl::Status Send(const char* from, Bytes bytes) override HF_EXCLUDES(mutex_);
  absl::Status Receive(char* to, Bytes bytes) override HF_EXCLUDES(mutex_);
  void Abort() override HF_EXCLUDES(mutex_);

 private:
  NcclTransport(const NcclLibrary* library, std::shared_ptr<const CudaContext> context, int rank,
                absl::Duration deadline)
      : library_(library), context_(std::move(context)), peer_(1 - rank), deadline_(deadline) {}

  absl::Status Init(const NcclId& id, int rank) HF_EXCLUDES(mutex_);
  // Queues a call on the communicator and waits until the stream has carried it out.
  absl::Status Run(const char* call, const std::function<NcclResult(NcclComm*)>& queue)
      HF_EXCLUDES(mutex_);
  // Looks at the communicator, and at `over` (may be null) once it is in order, until one fails or
  // both are done.
  absl::Status Await(const char* call, absl::Time end,
                     const std::function<absl::StatusOr<bool>()>& over) HF_EXCLUDES(mutex_);

  const NcclLibrary* const library_;
  const std::shared_ptr<const CudaContext> context_;
  const int peer_;
  const absl::Duration deadline_;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  // Held for each call on the communicator, none of which blocks: it goes away under Abort.
  Mutex mutex_;
  NcclComm* comm_ HF_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_NCCL_NCCL_TRANSPORT_H_
