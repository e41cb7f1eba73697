#include "agent/transfer/nccl/nccl_transport.h"

#include <glog/logging.h>
#include <time.h>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr int kSpins = 50;  // Looks without a pause: a small piece is over by then.

void Pause(int looks) {
  if (looks < kSpins) return;
  const timespec pause = {0, 5000};
  nanosleep(&pause, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclTransport>> NcclTransport::Create(
    const NcclLibrary* library, std::shared_ptr<const CudaContext> context, const NcclId& id,
    int rank, absl::Duration deadline) {
  std::unique_ptr<NcclTransport> transport(
      new NcclTransport(library, std::move(context), rank, deadline));
  HF_RETURN_IF_ERROR(transport->Init(id, rank));
  return transport;
}

absl::Status NcclTransport::Init(const NcclId& id, int rank) {
  const CudaDriver& driver = context_->driver();
  const CurrentContext current(*context_);
  HF_CUDA_RETURN_IF_ERROR(driver, context_->uuid(), cuStreamCreate, &stream_,
                          CU_STREAM_NON_BLOCKING);
  HF_CUDA_RETURN_IF_ERROR(driver, context_->uuid(), cuEventCreate, &event_,
                          CU_EVENT_DISABLE_TIMING);
  NcclConfig config;
  {
    MutexLock lock(&mutex_);
    const NcclResult begun =
        library_->comm_init_rank_config(&comm_, /*ranks=*/2, id, rank, &config);
    if (begun != kNcclInProgress) {
      HF_RETURN_IF_ERROR(library_->Check(begun, "ncclCommInitRankConfig", nullptr));
    }
  }
  return Await("ncclCommInitRankConfig", MonotonicClock()->Now() + deadline_, nullptr);
}

NcclTransport::~NcclTransport() {
  Abort();
  const CudaDriver& driver = context_->driver();
  const CurrentContext current(*context_);
  if (stream_ != nullptr) {
    driver.cuStreamSynchronize(stream_);  // What was aborted has left the GPU.
    driver.cuStreamDestroy(stream_);
  }
  if (event_ != nullptr) driver.cuEventDestroy(event_);
}

absl::Status NcclTransport::Await(const char* call, absl::Time end,
                                  const std::function<absl::StatusOr<bool>()>& over) {
  for (int looks = 0;; ++looks) {
    {
      MutexLock lock(&mutex_);
      if (comm_ == nullptr) return absl::UnavailableError(absl::StrCat(call, " was given up"));
      NcclResult state = kNcclSuccess;
      HF_RETURN_IF_ERROR(library_->Check(library_->comm_get_async_error(comm_, &state),
                                         "ncclCommGetAsyncError", comm_));
      if (state != kNcclInProgress) {
        HF_RETURN_IF_ERROR(library_->Check(state, call, comm_));
        if (over == nullptr) return absl::OkStatus();
        HF_ASSIGN_OR_RETURN(const bool is_over, over());
        if (is_over) return absl::OkStatus();
      }
    }
    if (MonotonicClock()->Now() >= end) {
      return absl::UnavailableError(absl::StrCat("the peer does not answer: ", call,
                                                 " was not over within ",
                                                 absl::FormatDuration(deadline_)));
    }
    Pause(looks);
  }
}

absl::Status NcclTransport::Run(const char* call,
                                const std::function<NcclResult(NcclComm*)>& queue) {
  const absl::Time end = MonotonicClock()->Now() + deadline_;
  const CudaDriver& driver = context_->driver();
  const CurrentContext current(*context_);
  {
    MutexLock lock(&mutex_);
    if (comm_ == nullptr) return absl::UnavailableError(absl::StrCat(call, " was given up"));
    const NcclResult queued = queue(comm_);
    if (queued != kNcclInProgress) HF_RETURN_IF_ERROR(library_->Check(queued, call, comm_));
  }
  // Until NCCL has launched it: only then may an event be recorded behind it.
  HF_RETURN_IF_ERROR(Await(call, end, nullptr));
  HF_CUDA_RETURN_IF_ERROR(driver, context_->uuid(), cuEventRecord, event_, stream_);
  return Await(call, end, [&]() -> absl::StatusOr<bool> {
    const CUresult done = driver.cuEventQuery(event_);
    if (done == CUDA_ERROR_NOT_READY) return false;
    HF_RETURN_IF_ERROR(driver.Check(done, call, context_->uuid()));
    return true;
  });
}

absl::Status NcclTransport::Send(const char* from, Bytes bytes) {
  return Run("ncclSend", [&](NcclComm* comm) {
    return library_->send(from, static_cast<size_t>(bytes), kNcclBytes, peer_, comm,
                          reinterpret_cast<NcclStream*>(stream_));
  });
}

absl::Status NcclTransport::Receive(char* to, Bytes bytes) {
  return Run("ncclRecv", [&](NcclComm* comm) {
    return library_->recv(to, static_cast<size_t>(bytes), kNcclBytes, peer_, comm,
                          reinterpret_cast<NcclStream*>(stream_));
  });
}

void NcclTransport::Abort() {
  const CurrentContext current(*context_);
  MutexLock lock(&mutex_);
  if (comm_ == nullptr) return;
  const absl::Status aborted =
      library_->Check(library_->comm_abort(comm_), "ncclCommAbort", nullptr);
  if (!aborted.ok()) LOG(WARNING) << aborted.message();
  comm_ = nullptr;
}

}  // namespace hyperframes
