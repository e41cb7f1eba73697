// What this project calls of NCCL, for GPUs of agent/device/cuda/fake. A collective among ranks of
// one process keeps its streams busy for as long as a link of the given speed would; no bytes are
// combined. Two ranks that are made outside a group are in two processes: bytes that one sends come
// to the other, through a socket.
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
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agent/device/cuda/fake/fake_gpus.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kSystemError = 2;
constexpr int kInvalidUsage = 5;
constexpr int kRemoteError = 6;
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
  bool is_far = false;  // The other rank is in another process, behind this socket.
  std::atomic<int> socket{-1};
  std::atomic<int> error{0};
  std::atomic<hyperframes::FakeStream*> busy{nullptr};
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

std::mutex listeners_mutex;
std::map<std::string, int>& Listeners() {
  static auto& listeners = *new std::map<std::string, int>();
  return listeners;
}

// Abstract: no file is left.
sockaddr_un AddressOf(const std::string& name, socklen_t* length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Whoever made the id waits for the other rank, which connects.
[[maybe_unused]] void Meet(ncclComm* comm, const std::string& name) {
  int listener = -1;
  {
    const std::lock_guard<std::mutex> lock(listeners_mutex);
    const auto found = Listeners().find(name);
    if (found != Listeners().end()) listener = found->second;
  }
  if (listener >= 0) {
    comm->socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    return;
  }
  socklen_t length = 0;
  const sockaddr_un address = AddressOf(name, &length);
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(made, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    comm->error = kRemoteError;
    return;
  }
  comm->socket = made;
}

// Moves bytes to or from the other process, with the stream busy for as long as that takes.
int Carry(ncclComm* comm, char* bytes, size_t count, bool sends, void* stream_handle) {
  auto* const stream = static_cast<hyperframes::FakeStream*>(stream_handle);
  if (comm->socket < 0) return kInvalidUsage;
  while (comm->busy != nullptr) usleep(10);  // The stream is done with the last one; so is it.
  stream->busy_until_ns = LLONG_MAX;
  comm->busy = stream;
  std::thread([comm, stream, bytes, count, sends] {
    for (size_t at = 0; at < count;) {
      const ssize_t moved = sends ? send(comm->socket, bytes + at, count - at, MSG_NOSIGNAL)
                                  : recv(comm->socket, bytes + at, count - at, 0);
      if (moved <= 0) {
        comm->error = kRemoteError;
        break;
      }
      at += static_cast<size_t>(moved);
    }
    stream->busy_until_ns = 0;
    comm->busy = nullptr;  // Last: the stream may go after this.
  }).detach();
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22000;
  return kSuccess;
}

struct Id {
  char internal[128];
};

int ncclGetUniqueId(Id* id) {
  const char* const multicast = getenv("NCCL_NVLS_ENABLE");
  if (multicast == nullptr || std::string(multicast) != "0") return kInvalidUsage;
  // By chance: tests in containers of their own have the same process numbers.
  std::random_device chance;
  snprintf(id->internal, sizeof(id->internal), "fake-nccl-%08x%08x", chance(), chance());
  socklen_t length = 0;
  const sockaddr_un address = AddressOf(id->internal, &length);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener, 1) != 0) {
    return kSystemError;
  }
  const std::lock_guard<std::mutex> lock(listeners_mutex);
  Listeners()[id->internal] = listener;
  return Behave("ncclGetUniqueId");
}

#ifndef HF_FAKE_NCCL_IS_OLD
int ncclCommInitRankConfig(ncclComm** comm, int ranks, Id id, int rank, Config* config) {
  if ((group_depth == 0 && ranks != 2) || rank >= ranks || config->blocking != 0) {
    return kInvalidUsage;
  }
  *comm = new ncclComm();
  (*comm)->ranks = ranks;
  if (group_depth == 0) {
    (*comm)->is_far = true;
    std::thread([made = *comm, name = std::string(id.internal)] { Meet(made, name); }).detach();
    return kInProgress;
  }
  of_group.push_back(*comm);
  if (Is("hangs", "ncclCommInitRankConfig")) (*comm)->looks_until_ready = INT_MAX;
  return Behave("ncclCommInitRankConfig");
}
#endif

int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  if (comm->is_far) {
    *error = comm->error != kSuccess ? comm->error.load()
             : comm->socket < 0      ? kInProgress
                                     : kSuccess;
    return kSuccess;
  }
  const bool waits = comm->looks_until_ready > 0;
  if (waits && comm->looks_until_ready < INT_MAX) --comm->looks_until_ready;
  *error = waits ? kInProgress : kSuccess;
  return Behave("ncclCommGetAsyncError");
}

// What it was doing is cut off, and has left its stream when this returns.
int ncclCommAbort(ncclComm* comm) {
  if (!comm->is_far) return kSuccess;
  shutdown(comm->socket, SHUT_RDWR);
  while (comm->busy != nullptr) usleep(100);
  return kSuccess;
}

int ncclSend(const void* from, size_t count, int, int, ncclComm* comm, void* stream) {
  if (comm->is_far) {
    return Carry(comm, static_cast<char*>(const_cast<void*>(from)), count, /*sends=*/true, stream);
  }
  const int entered = Enter("ncclSend", comm);
  if (entered == kSuccess) Occupy("ncclSend", stream, static_cast<double>(count));
  return entered;
}

int ncclRecv(void* to, size_t count, int, int, ncclComm* comm, void* stream) {
  if (comm->is_far) return Carry(comm, static_cast<char*>(to), count, /*sends=*/false, stream);
  return Enter("ncclRecv", comm);
}

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
