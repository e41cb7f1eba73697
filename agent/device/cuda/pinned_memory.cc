#include "agent/device/cuda/pinned_memory.h"

#include <glog/logging.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/device/host/host_memory.h"
#include "common/host_limits.h"
#include "common/status_macros.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace hyperframes {
namespace {

constexpr unsigned kMostThreads = 8;
constexpr int kPreferOneNode = 1;                       // MPOL_PREFERRED, without libnuma's header.
constexpr absl::Duration kSayEvery = absl::Seconds(5);  // Silence would look like a hang.

// Pages made from here on come from `node` where it has room. Only a hint: a container may forbid
// it.
void PreferNode(char* data, Bytes bytes, int node) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  if (node < 0 || node >= kBits) return;
  const unsigned long nodes = 1ul << node;
  if (syscall(SYS_mbind, data, bytes, kPreferOneNode, &nodes, kBits, 0) != 0) {
    VLOG(1) << "pinned memory is not bound to NUMA node " << node << ": mbind was refused";
  }
}

// Makes the pages without changing what they hold: an adopted lease has frames in it.
void FaultInPiece(char* data, Bytes bytes) {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
  const Bytes page = sysconf(_SC_PAGESIZE);  // A kernel before 5.14.
  for (Bytes at = 0; at < bytes; at += page) __atomic_fetch_or(data + at, 0, __ATOMIC_RELAXED);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Memory>> PinnedMemory::Map(
    std::shared_ptr<const CudaContext> context, int descriptor, Bytes bytes, int numa_node) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Memory> mapped, HostMemory::Map(descriptor, bytes));
  return std::unique_ptr<Memory>(
      new PinnedMemory(std::move(context), std::move(mapped), numa_node));
}

PinnedMemory::PinnedMemory(std::shared_ptr<const CudaContext> context,
                           std::unique_ptr<Memory> mapped, int numa_node)
    : context_(std::move(context)),
      mapped_(std::move(mapped)),
      numa_node_(numa_node),
      thread_([this] { Pin(); }) {}

PinnedMemory::~PinnedMemory() {
  stop_ = true;
  thread_.join();
  MutexLock lock(&mutex_);
  if (state_ != State::kPinned) return;
  const CurrentContext current(*context_);
  context_->driver().cuMemHostUnregister(data());
}

absl::Status PinnedMemory::WaitUntilUsable() const {
  MutexLock lock(&mutex_);
  changed_.Wait(&mutex_, [this] {
    mutex_.AssertHeld();
    return state_ != State::kPinning;
  });
  return result_;
}

double PinnedMemory::usable_share() const {
  return static_cast<double>(faulted_in_.load(std::memory_order_relaxed)) /
         static_cast<double>(bytes());
}

void PinnedMemory::Pin() {
  const absl::Time started = absl::Now();
  absl::Status result = FaultIn();
  if (result.ok()) result = Register();
  if (result.ok()) {
    VLOG(1) << "pinned " << FormatBytes(bytes()) << " for " << context_->uuid() << " in "
            << absl::Now() - started;
  }
  Settle(result.ok() ? State::kPinned : State::kFailed, result);
}

// Pages beyond a container's limit would not be refused: the kernel would end this process. The
// machine's own free memory is no such border: some are given more of it as they use it.
absl::Status PinnedMemory::CheckRoom() const {
  struct stat file = {};
  const bool known = fstat(mapped_->descriptor(), &file) == 0;
  const Bytes made = known ? Bytes{file.st_blocks} * 512 : 0;  // By whoever had the lease before.
  HostLimits of_pages = ReadHostLimits();
  of_pages.available = absl::nullopt;
  of_pages.address_space = absl::nullopt;  // The mapping is made.
  const Bytes need = bytes() - std::min(made, bytes());
  if (need <= RoomOf(of_pages).bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      FormatBytes(bytes()), " of host memory cannot be pinned: ", WhyNotPinned(need, of_pages)));
}

absl::Status PinnedMemory::FaultIn() {
  HF_RETURN_IF_ERROR(CheckRoom());
  PreferNode(data(), bytes(), numa_node_);
  // Most of the time goes into making and zeroing pages, which several threads share.
  const auto pieces = static_cast<unsigned>(std::min<Bytes>((bytes() + kPiece - 1) / kPiece, 1024));
  const unsigned threads =
      std::min({pieces, kMostThreads, std::max(1u, std::thread::hardware_concurrency() / 2)});
  std::atomic<Bytes> next{0};
  std::vector<std::thread> workers;
  workers.reserve(threads);
  for (unsigned i = 1; i < threads; ++i) {
    workers.emplace_back([this, &next] { FaultInPieces(&next, /*says_progress=*/false); });
  }
  FaultInPieces(&next, /*says_progress=*/true);
  for (std::thread& worker : workers) worker.join();
  if (stop_) return absl::CancelledError("pinning was given up");
  return absl::OkStatus();
}

void PinnedMemory::FaultInPieces(std::atomic<Bytes>* next, bool says_progress) {
  absl::Time say_at = absl::Now() + kSayEvery;
  while (!stop_) {
    const Bytes at = next->fetch_add(kPiece);
    if (at >= bytes()) return;
    const Bytes piece = std::min(kPiece, bytes() - at);
    FaultInPiece(data() + at, piece);
    const Bytes so_far = faulted_in_ += piece;
    if (!says_progress || absl::Now() < say_at) continue;
    say_at = absl::Now() + kSayEvery;
    LOG(INFO) << "pinning host memory for " << context_->uuid() << ": " << FormatBytes(so_far)
              << " of " << FormatBytes(bytes());
  }
}

// In one call: a copy may not cross the border of two registrations.
absl::Status PinnedMemory::Register() {
  const CudaDriver& driver = context_->driver();
  const CurrentContext current(*context_);
  const CUresult registered =
      driver.cuMemHostRegister(data(), static_cast<size_t>(bytes()), CU_MEMHOSTREGISTER_PORTABLE);
  if (registered == CUDA_SUCCESS) return absl::OkStatus();
  const absl::Status why =
      driver.Check(registered, "cuMemHostRegister",
                   absl::StrCat(FormatBytes(bytes()), " for ", context_->uuid()));
  return absl::ResourceExhaustedError(
      absl::StrCat(FormatBytes(bytes()), " of host memory cannot be pinned: ",
                   WhyNotPinned(bytes(), ReadHostLimits()), "; ", why.message()));
}

void PinnedMemory::Settle(State state, absl::Status result) {
  MutexLock lock(&mutex_);
  if (!MayMove(state_, state)) return;
  state_ = state;
  result_ = std::move(result);
  changed_.NotifyAll();
}

}  // namespace hyperframes
