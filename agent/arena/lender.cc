#include "agent/arena/lender.h"

#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/arena/descriptor_wire.h"
#include "common/clock.h"
#include "common/spawn.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// False: `timeout` has passed.
bool WaitReadable(int socket, absl::Duration timeout) {
  const absl::Time end = MonotonicClock()->Now() + timeout;
  while (true) {
    const absl::Duration left = end - MonotonicClock()->Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd watched = {socket, POLLIN, 0};
    const int64_t wait_ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1, 60000);
    if (poll(&watched, 1, static_cast<int>(wait_ms)) > 0) return true;
  }
}

}  // namespace

struct Lender::Answer {
  UniqueFd descriptor;
};

Lender::~Lender() {
  MutexLock lock(&mutex_);
  End();
}

absl::Status Lender::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no socket: ", strerror(errno)));
  }
  socket_.reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  SpawnOptions spawn;
  spawn.arguments = options_.command;
  spawn.arguments.push_back(absl::StrCat("--socket=", kInheritedFd));
  spawn.inherited = theirs.get();
  absl::StatusOr<pid_t> started = Spawn(spawn);
  if (!started.ok()) {
    socket_.reset();
    return started.status();
  }
  process_ = *started;
  return absl::OkStatus();
}

// It ends by itself once its socket is closed; one that hangs in the driver is not waited for.
void Lender::End() {
  socket_.reset();
  if (process_ == 0) return;
  std::thread([pid = process_] {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }).detach();
  process_ = 0;
}

// A process that has lent before may have ended since, which shows when the question is sent or,
// where it ended a moment later, when no answer comes. Nothing is lost with it: memory that nobody
// was handed is free. So another one is started and asked, once.
absl::StatusOr<Lender::Answer> Lender::Ask(uint16_t type, const std::string& uuid, int descriptor,
                                           Bytes bytes) {
  const bool fresh = !socket_.valid();
  if (fresh) HF_RETURN_IF_ERROR(Start());
  WireMessage message;
  message.type = type;
  message.sequence = next_sequence_++;
  message.bytes = bytes;
  SetWireText(uuid, message.id, sizeof(message.id));
  const absl::Status sent = SendWire(socket_.get(), message, descriptor);
  if (!sent.ok()) {
    End();
    return fresh ? sent : Ask(type, uuid, descriptor, bytes);
  }
  if (!WaitReadable(socket_.get(), options_.patience)) {
    kill(process_, SIGKILL);  // Not yet collected, so the number is still its own.
    End();
    return absl::DeadlineExceededError(absl::StrCat(
        "the driver has not answered for ", absl::FormatDuration(options_.patience), " about ",
        FormatBytes(bytes), " on ", uuid, ": look at nvidia-smi and dmesg"));
  }
  Received reply;
  WireError error = WireError::kNone;
  if (ReceiveWire(socket_.get(), &reply, &error) != ReceiveResult::kMessage ||
      reply.message.sequence != message.sequence) {
    End();
    if (!fresh) return Ask(type, uuid, descriptor, bytes);
    return absl::UnavailableError(absl::StrCat(options_.command[0], " ended when it was asked for ",
                                               FormatBytes(bytes), " on ", uuid,
                                               ": the agent's log has its last words"));
  }
  HF_RETURN_IF_ERROR(ReplyStatus(reply.message));
  return Answer{std::move(reply.descriptor)};
}

absl::StatusOr<UniqueFd> Lender::Allocate(const std::string& uuid, Bytes bytes) {
  MutexLock lock(&mutex_);
  HF_ASSIGN_OR_RETURN(Answer answer,
                      Ask(static_cast<uint16_t>(WireType::kMap), uuid, /*descriptor=*/-1, bytes));
  if (answer.descriptor.valid()) return std::move(answer.descriptor);
  return absl::ResourceExhaustedError(absl::StrCat("no descriptor left for ", FormatBytes(bytes),
                                                   " on ", uuid, ": raise the agent's ulimit -n"));
}

absl::Status Lender::Check(const std::string& uuid, int descriptor, Bytes bytes) {
  MutexLock lock(&mutex_);
  return Ask(static_cast<uint16_t>(WireType::kOffer), uuid, descriptor, bytes).status();
}

void ServeLending(int socket, const GpuMachine& machine) {
  while (true) {
    if (!WaitReadable(socket, absl::Hours(1))) continue;
    Received request;
    WireError error = WireError::kNone;
    const ReceiveResult result = ReceiveWire(socket, &request, &error);
    if (result == ReceiveResult::kWouldBlock) continue;
    if (result != ReceiveResult::kMessage) return;
    Device* const gpu = machine.Find(request.message.id);
    absl::StatusOr<std::unique_ptr<Memory>> memory =
        absl::NotFoundError(absl::StrCat("CUDA sees no GPU ", request.message.id));
    const bool offered = request.message.type == static_cast<uint16_t>(WireType::kOffer);
    if (gpu != nullptr) {
      memory = offered ? gpu->Adopt(request.descriptor.release(), request.message.bytes)
                       : gpu->Allocate(request.message.bytes);
    }
    const WireMessage reply = MakeReply(request.message, memory.status());
    const int descriptor = memory.ok() && !offered ? (*memory)->descriptor() : -1;
    if (!SendWire(socket, reply, descriptor).ok()) return;
  }
}

}  // namespace hyperframes
