// Lending between processes as agent and worker do it: the lender sees only its own GPU, makes no
// context there, and may die; the borrower sees only the other GPU. Skipped, and counted as
// skipped, on a machine with fewer than two GPUs.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/cuda/nvml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

constexpr Bytes kLent = 256 * kMiB;
constexpr Bytes kLooked = kMiB;
constexpr Bytes kLessThanAContext = 64 * kMiB;
constexpr size_t kUuidRoom = 64;

void Require(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "child %d: %s\n", getpid(), what);
  _exit(1);
}

template <typename T>
T Value(absl::StatusOr<T> value, const char* what) {
  if (!value.ok()) fprintf(stderr, "%s\n", std::string(value.status().message()).c_str());
  Require(value.ok(), what);
  return *std::move(value);
}

void SendDescriptor(int channel, int descriptor) {
  char byte = 'd';
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  Require(sendmsg(channel, &message, 0) == 1, "sendmsg");
}

int ReceiveDescriptor(int channel) {
  char byte = 0;
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  Require(recvmsg(channel, &message, MSG_CMSG_CLOEXEC) == 1, "recvmsg");
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
  return descriptor;
}

// One byte of a conversation between the test and a child.
void Say(int channel, char word) { Require(write(channel, &word, 1) == 1, "write"); }
bool Hear(int channel, char word) {
  char heard = 0;
  return read(channel, &heard, 1) == 1 && heard == word;
}

std::unique_ptr<CudaMachine> SeeOnly(int channel) {
  char uuid[kUuidRoom] = "";
  Require(read(channel, uuid, kUuidRoom) == kUuidRoom, "no uuid");
  setenv("CUDA_VISIBLE_DEVICES", uuid, /*overwrite=*/1);
  auto machine = Value(CudaMachine::Open({}), "open");
  Require(machine->gpus().size() == 1, "sees another number of GPUs");
  Require(machine->gpus()[0]->description().uuid == uuid, "sees another GPU");
  Require(!machine->HiddenGpus().empty(), "knows of no hidden GPU");
  return machine;
}

[[noreturn]] void Lend(int test, int borrower) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto machine = SeeOnly(test);
  const auto memory = Value(machine->gpus()[0]->Allocate(kLent), "allocate");
  SendDescriptor(borrower, memory->descriptor());
  Say(test, 'l');
  while (true) pause();
}

std::vector<char> Look(Device* gpu, Device* host, Stream* stream, const char* data) {
  const auto lent = Value(host->Allocate(kLooked), "host memory");
  const auto window =
      Value(gpu->Map(fcntl(lent->descriptor(), F_DUPFD_CLOEXEC, 0), kLooked), "host memory");
  Require(window->WaitUntilUsable().ok(), "pin");
  Require(stream->Copy(window->data(), data, kLooked).ok(), "copy");
  stream->Record()->Synchronize();
  return std::vector<char>(window->data(), window->data() + kLooked);
}

[[noreturn]] void Borrow(int test, int lender) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto machine = SeeOnly(test);
  Device* const gpu = machine->gpus()[0];
  const auto stream = Value(gpu->CreateStream(Direction::kOut, Tier::kPeer), "stream");
  auto memory = Value(gpu->Map(ReceiveDescriptor(lender), kLent), "map");
  const char* const end = memory->data() + kLent - kLooked;
  const auto sees = [&](char value) {
    const std::vector<char> seen = Look(gpu, machine->host(), stream.get(), end);
    return static_cast<Bytes>(std::count(seen.begin(), seen.end(), value)) == kLooked;
  };
  Require(sees(0), "lent memory is not zeroed");
  Require(stream->Fill(memory->data(), 'b', kLent).ok(), "fill");
  Require(sees('b'), "other bytes than were written");
  Say(test, 'b');
  Require(Hear(test, 'k'), "no word of the kill");
  Require(sees('b'), "the lender's death changed the bytes");
  Require(stream->Fill(memory->data(), 'c', kLent).ok() && sees('c'), "no writing after the kill");
  memory.reset();
  Say(test, 'c');
  Require(Hear(test, 'e'), "no word of the end");
  _exit(0);
}

template <typename Body>
pid_t Fork(int kept, int closed, Body body) {
  const pid_t child = fork();
  if (child != 0) return child;
  close(closed);
  body(kept);
  _exit(0);
}

Bytes FreeOn(const std::string& uuid) { return (*Nvml::Get())->Find(uuid)->free_bytes; }

TEST(Lending, WorksFromAHiddenGpuAndOutlivesTheLender) {
  int to_lender[2], to_borrower[2], between[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to_lender), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to_borrower), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, between), 0);
  // Forked before anything of CUDA or NVML runs here: neither survives a fork.
  const pid_t lender = Fork(to_lender[1], to_lender[0], [&](int test) { Lend(test, between[0]); });
  close(to_lender[1]);  // So that a child that dies is heard, and not waited for.
  const pid_t borrower = Fork(to_borrower[1], to_borrower[0], [&](int test) {
    close(to_lender[0]);
    Borrow(test, between[1]);
  });
  close(to_borrower[1]);
  const auto end = [](pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  };
  const absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  const std::vector<NodeGpu> gpus = nvml.ok() ? (*nvml)->List() : std::vector<NodeGpu>();
  if (gpus.size() < 2) {
    end(lender);
    end(borrower);
    GTEST_SKIP() << "needs two GPUs and NVML; there are " << gpus.size();
  }
  const std::string lends = gpus[1].uuid;
  const Bytes free_before = FreeOn(lends);
  for (const auto& [channel, uuid] :
       {std::make_pair(to_borrower[0], gpus[0].uuid), std::make_pair(to_lender[0], lends)}) {
    char text[kUuidRoom] = "";
    std::strncpy(text, uuid.c_str(), kUuidRoom - 1);
    ASSERT_EQ(write(channel, text, kUuidRoom), static_cast<ssize_t>(kUuidRoom));
  }
  EXPECT_TRUE(Hear(to_lender[0], 'l'));
  const Bytes taken = free_before - FreeOn(lends);
  EXPECT_GE(taken, kLent);
  EXPECT_LT(taken, kLent + kLessThanAContext) << "the lender made a context";
  printf("lending %lld MiB takes %lld MiB of the card\n", static_cast<long long>(kLent / kMiB),
         static_cast<long long>(taken / kMiB));
  EXPECT_TRUE(Hear(to_borrower[0], 'b'));
  end(lender);
  Say(to_borrower[0], 'k');
  EXPECT_TRUE(Hear(to_borrower[0], 'c'));
  // While the borrower lives, the driver keeps a few MiB there of its own.
  EXPECT_GE(FreeOn(lends), free_before - kLessThanAContext) << "bytes are left on the lender";
  Say(to_borrower[0], 'e');
  int status = -1;
  ASSERT_EQ(waitpid(borrower, &status, 0), borrower);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  // It takes a moment to count what was given back.
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (FreeOn(lends) < free_before && absl::Now() < deadline) {
  }
  EXPECT_EQ(FreeOn(lends), free_before) << "bytes are left on the lender";
}

}  // namespace
}  // namespace hyperframes
