// What this project calls of NCCL, for GPUs of agent/device/cuda/fake. A collective keeps its
// streams busy for as long as a link of the given speed would; no bytes are combined.
//
// HYPERFRAMES_FAKE_NCCL describes how it behaves, in words separated by commas:
//   speed=10000000      bytes/s over the slowest link (bus bandwidth); else 100 GB/s
//   fails=CALL          the call returns ncclSystemError
//   hangs=CALL          what it began is never over
//   blocks=CALL         the call never returns
//   dies=CALL           the process is aborted in it
// Calls in the wrong order are refused as the real one refuses them, or worse: a communicator used
// before it is ready, an operation outside a group, multicast not switched off.
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "agent/device/cuda/fake/fake_gpus.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kSystemError = 2;
constexpr int kInvalidUsage = 5;
constexpr int kInProgress = 7;
constexpr int kLooksUntilReady = 3;

struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

std::string Described() {
  const char* const text = getenv("HYPERFRAMES_FAKE_NCCL");
  return std::string(",") + (text == nullptr ? "" : text) + ",";
}

bool Is(const char* how, const char* call) {
  return Described().find(std::string(",") + how + "=" + call + ",") != std::string::npos;
}

double BytesPerSecond() {
  const std::string described = Described();
  const size_t at = described.find(",speed=");
  return at == std::string::npos ? 100e9 : atof(described.c_str() + at + 7);
}

// What the description says of `call`; success where it says nothing.
int Behave(const char* call) {
  if (Is("blocks", call)) {
    while (true) pause();
  }
  if (Is("dies", call)) abort();
  return Is("fails", call) ? kSystemError : kSuccess;
}

thread_local int group_depth = 0;

}  // namespace

struct ncclComm {
  int ranks = 0;
  int looks_until_ready = 0;
};

namespace {

thread_local std::vector<ncclComm*> of_group;

int Enter(const char* call, ncclComm* comm) {
  if (group_depth == 0 || comm->looks_until_ready > 0) return kInvalidUsage;
  of_group.push_back(comm);
  return Behave(call);
}

void Occupy(const char* call, void* stream, double bytes_on_link) {
  auto& busy = static_cast<hyperframes::FakeStream*>(stream)->busy_until_ns;
  if (Is("hangs", call)) busy = LLONG_MAX;
  if (busy == LLONG_MAX) return;
  const auto takes_ns = static_cast<long long>(bytes_on_link / BytesPerSecond() * 1e9) + 1000;
  busy = std::max<long long>(busy, hyperframes::FakeNow()) + takes_ns;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22000;
  return kSuccess;
}

int ncclGetUniqueId(void*) {
  const char* const multicast = getenv("NCCL_NVLS_ENABLE");
  if (multicast == nullptr || std::string(multicast) != "0") return kInvalidUsage;
  return Behave("ncclGetUniqueId");
}

struct Id {
  char internal[128];
};

#ifndef HF_FAKE_NCCL_IS_OLD
int ncclCommInitRankConfig(ncclComm** comm, int ranks, Id, int rank, Config* config) {
  if (group_depth == 0 || rank >= ranks || config->blocking != 0) return kInvalidUsage;
  *comm = new ncclComm();
  (*comm)->ranks = ranks;
  of_group.push_back(*comm);
  if (Is("hangs", "ncclCommInitRankConfig")) (*comm)->looks_until_ready = INT_MAX;
  return Behave("ncclCommInitRankConfig");
}
#endif

int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  const bool waits = comm->looks_until_ready > 0;
  if (waits && comm->looks_until_ready < INT_MAX) --comm->looks_until_ready;
  *error = waits ? kInProgress : kSuccess;
  return Behave("ncclCommGetAsyncError");
}

int ncclCommAbort(ncclComm*) { return kSuccess; }

int ncclSend(const void*, size_t count, int, int, ncclComm* comm, void* stream) {
  const int entered = Enter("ncclSend", comm);
  if (entered == kSuccess) Occupy("ncclSend", stream, static_cast<double>(count));
  return entered;
}

int ncclRecv(void*, size_t, int, int, ncclComm* comm, void*) { return Enter("ncclRecv", comm); }

int ncclAllReduce(const void*, void*, size_t count, int, int, ncclComm* comm, void* stream) {
  const int entered = Enter("ncclAllReduce", comm);
  const double bytes = 4.0 * static_cast<double>(count);
  if (entered == kSuccess)
    Occupy("ncclAllReduce", stream, bytes * 2 * (comm->ranks - 1) / comm->ranks);
  return entered;
}

int ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (group_depth-- != 1) return kInvalidUsage;
  for (ncclComm* comm : of_group) {
    comm->looks_until_ready = std::max(comm->looks_until_ready, kLooksUntilReady);
  }
  of_group.clear();
  const int behaved = Behave("ncclGroupEnd");
  return behaved == kSuccess ? kInProgress : behaved;
}

const char* ncclGetErrorString(int result) {
  return result == kSystemError ? "unhandled system error" : "invalid usage";
}

const char* ncclGetLastError(ncclComm*) { return "a fake NCCL's error"; }

}  // extern "C"
