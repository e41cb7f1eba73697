#include "agent/device/nccl/collective_probe.h"

#include <time.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/device/borrowed_memory.h"
#include "agent/device/cuda/cuda_context.h"
#include "agent/device/cuda/cuda_device.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Bytes kFewBytes = 4 * kKiB;
constexpr Bytes kFirstBytes = kMiB;
constexpr int kSmallOnes = 10;
constexpr int kLargeOnes = 5;
constexpr absl::Duration kPatience = absl::Milliseconds(150);
constexpr int kSpins = 200;  // Looks without a pause: a small one is over by then.

const char* NameOf(Collective collective) {
  return collective == Collective::kAllReduce ? "ncclAllReduce" : "ncclSend and ncclRecv";
}

void Pause(int looks) {
  if (looks < kSpins) return;
  const timespec pause = {0, 20000};
  nanosleep(&pause, nullptr);
}

// One GPU. All of it lives as long as the process: a collective that hangs may still use it.
struct Rank {
  std::shared_ptr<const CudaContext> context;
  std::unique_ptr<Memory> buffer;  // What is sent; what comes is written behind it.
  CUstream stream = nullptr;
  CUevent event = nullptr;
  NcclComm* comm = nullptr;
};

absl::Status OpenRank(const CudaDriver* driver, Device* gpu, Bytes bytes, Rank* rank) {
  const std::string& uuid = gpu->description().uuid;
  HF_ASSIGN_OR_RETURN(rank->context,
                      CudaContext::Retain(driver, static_cast<CudaDevice*>(gpu)->device(), uuid));
  HF_ASSIGN_OR_RETURN(rank->buffer, BorrowMemory(gpu, gpu, 2 * bytes));
  const CurrentContext current(*rank->context);
  HF_CUDA_RETURN_IF_ERROR(*driver, uuid, cuStreamCreate, &rank->stream, CU_STREAM_NON_BLOCKING);
  HF_CUDA_RETURN_IF_ERROR(*driver, uuid, cuEventCreate, &rank->event, CU_EVENT_DISABLE_TIMING);
  return absl::OkStatus();
}

class Probe final : public CollectiveProbe {
 public:
  Probe(const NcclLibrary* library, std::vector<Rank>* ranks, Bytes most_bytes, const Clock* clock)
      : library_(library), ranks_(*ranks), most_bytes_(most_bytes), clock_(clock) {}

  absl::Status Connect(absl::Time deadline) override {
    NcclId id;
    HF_RETURN_IF_ERROR(
        library_->Check(library_->get_unique_id(&id), "ncclGetUniqueId", /*comm=*/nullptr));
    std::vector<NcclConfig> configs(ranks_.size());
    HF_RETURN_IF_ERROR(InGroup("ncclCommInitRankConfig", deadline, [&](int at) {
      Rank& rank = ranks_[static_cast<size_t>(at)];
      return library_->comm_init_rank_config(&rank.comm, count(), id, at,
                                             &configs[static_cast<size_t>(at)]);
    }));
    return absl::OkStatus();
  }

  absl::Status WarmUp(Collective collective, absl::Time deadline) override {
    return Time(collective, kFewBytes, 1, deadline).status();
  }

  absl::StatusOr<CollectiveSpeed> Measure(Collective collective, absl::Time deadline) override {
    CollectiveSpeed speed;
    const absl::Time end = deadline + kPatience;
    HF_ASSIGN_OR_RETURN(speed.latency, Time(collective, kFewBytes, kSmallOnes, end));
    absl::Duration expected = speed.latency;
    for (Bytes bytes = kFirstBytes; bytes <= most_bytes_; bytes *= 4) {
      // Of each size one to see how long it takes, then several: is there time for all of them?
      const bool first = bytes == kFirstBytes;
      if (!first && clock_->Now() + expected * 4 * (kLargeOnes + 1) > deadline) break;
      HF_ASSIGN_OR_RETURN(expected, Time(collective, bytes, 1, end));
      if (clock_->Now() + expected * kLargeOnes < deadline) {
        HF_ASSIGN_OR_RETURN(expected, Time(collective, bytes, kLargeOnes, end));
      }
      speed.bus_bytes_per_second = BusBytesPerSecond(collective, count(), bytes, expected);
      speed.largest = bytes;
    }
    return speed;
  }

 private:
  int count() const { return static_cast<int>(ranks_.size()); }

  // Time of one of `repeats`, queued together.
  absl::StatusOr<absl::Duration> Time(Collective collective, Bytes bytes, int repeats,
                                      absl::Time deadline) {
    const absl::Time started = clock_->Now();
    for (int i = 0; i < repeats; ++i) {
      HF_RETURN_IF_ERROR(InGroup(NameOf(collective), deadline,
                                 [&](int at) { return Queue(collective, bytes, at); }));
    }
    for (const Rank& rank : ranks_) {
      const CurrentContext current(*rank.context);
      HF_CUDA_RETURN_IF_ERROR(rank.context->driver(), rank.context->uuid(), cuEventRecord,
                              rank.event, rank.stream);
    }
    HF_RETURN_IF_ERROR(Await(NameOf(collective), deadline, [this] { return StreamsAreDone(); }));
    return (clock_->Now() - started) / repeats;
  }

  NcclResult Queue(Collective collective, Bytes bytes, int at) {
    const Rank& rank = ranks_[static_cast<size_t>(at)];
    auto* const stream = reinterpret_cast<NcclStream*>(rank.stream);
    char* const from = rank.buffer->data();
    char* const to = from + most_bytes_;
    if (collective == Collective::kAllReduce) {
      return library_->all_reduce(from, to, static_cast<size_t>(bytes) / sizeof(float),
                                  kNcclFloat32, kNcclSum, rank.comm, stream);
    }
    const int next = (at + 1) % count();
    const int previous = (at + count() - 1) % count();
    const auto size = static_cast<size_t>(bytes);
    const NcclResult sent = library_->send(from, size, kNcclBytes, next, rank.comm, stream);
    if (sent != kNcclSuccess && sent != kNcclInProgress) return sent;
    return library_->recv(to, size, kNcclBytes, previous, rank.comm, stream);
  }

  // `call` for every rank, in one group, until all communicators have taken it.
  absl::Status InGroup(const char* call, absl::Time deadline,
                       const std::function<NcclResult(int)>& of_rank) {
    HF_RETURN_IF_ERROR(library_->Check(library_->group_start(), "ncclGroupStart", nullptr));
    absl::Status failed;
    for (int at = 0; at < count() && failed.ok(); ++at) {
      const Rank& rank = ranks_[static_cast<size_t>(at)];
      const CurrentContext current(*rank.context);
      const NcclResult result = of_rank(at);
      if (result != kNcclInProgress) failed = library_->Check(result, call, rank.comm);
    }
    const NcclResult ended = library_->group_end();
    HF_RETURN_IF_ERROR(failed);
    if (ended != kNcclInProgress) HF_RETURN_IF_ERROR(library_->Check(ended, call, nullptr));
    return Await(call, deadline, [&] { return CommunicatorsAreReady(call); });
  }

  absl::StatusOr<bool> CommunicatorsAreReady(const char* call) {
    for (const Rank& rank : ranks_) {
      NcclResult state = kNcclSuccess;
      HF_RETURN_IF_ERROR(library_->Check(library_->comm_get_async_error(rank.comm, &state),
                                         "ncclCommGetAsyncError", rank.comm));
      if (state == kNcclInProgress) return false;
      HF_RETURN_IF_ERROR(library_->Check(state, call, rank.comm));
    }
    return true;
  }

  absl::StatusOr<bool> StreamsAreDone() {
    for (const Rank& rank : ranks_) {
      const CurrentContext current(*rank.context);
      const CUresult done = rank.context->driver().cuEventQuery(rank.event);
      if (done == CUDA_ERROR_NOT_READY) {
        // An error of NCCL's own threads never shows on the stream.
        HF_RETURN_IF_ERROR(CommunicatorsAreReady("ncclCommGetAsyncError").status());
        return false;
      }
      HF_RETURN_IF_ERROR(rank.context->driver().Check(done, "cuEventQuery", rank.context->uuid()));
    }
    return true;
  }

  absl::Status Await(const char* call, absl::Time deadline,
                     const std::function<absl::StatusOr<bool>()>& over) {
    for (int looks = 0;; ++looks) {
      HF_ASSIGN_OR_RETURN(const bool is_over, over());
      if (is_over) return absl::OkStatus();
      if (clock_->Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(call, " was not over in time"));
      }
      Pause(looks);
    }
  }

  const NcclLibrary* const library_;
  std::vector<Rank>& ranks_;
  const Bytes most_bytes_;
  const Clock* const clock_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveProbe>> CollectiveProbe::Open(const CudaMachine* machine,
                                                                       const NcclLibrary* library,
                                                                       Bytes most_bytes,
                                                                       const Clock* clock) {
  const std::vector<Device*>& gpus = machine->gpus();
  if (gpus.size() < 2) return absl::InvalidArgumentError("a collective needs two GPUs");
  HF_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Get());
  Bytes bytes = most_bytes;
  for (const Device* gpu : gpus) bytes = std::min(bytes, gpu->free_bytes() / 8);
  if (bytes < kFirstBytes) {
    return absl::OutOfRangeError("a GPU is too full to measure collectives with");
  }
  auto* const ranks = new std::vector<Rank>(gpus.size());  // See Rank.
  std::vector<absl::Status> opened(gpus.size());
  std::vector<std::thread> threads;
  for (size_t at = 0; at < gpus.size(); ++at) {
    threads.emplace_back([driver, bytes, gpu = gpus[at], rank = &(*ranks)[at],
                          status = &opened[at]] { *status = OpenRank(driver, gpu, bytes, rank); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : opened) HF_RETURN_IF_ERROR(status);
  return std::unique_ptr<CollectiveProbe>(new Probe(library, ranks, bytes, clock));
}

}  // namespace hyperframes
