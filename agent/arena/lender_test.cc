// The other end of a lender as an agent may find it: absent, silent, gone, refusing.
#include "agent/arena/lender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "agent/arena/descriptor_wire.h"
#include "agent/device/host/host_machine.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

absl::Status AllocateWith(const std::vector<std::string>& command) {
  Lender lender({command, absl::Milliseconds(200)});
  return lender.Allocate("GPU-1", kMiB).status();
}

TEST(Lender, SaysWhatStandsInTheWay) {
  const absl::Status absent = AllocateWith({"/nowhere/hfprobe"});
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("/nowhere/hfprobe"));
  const absl::Status gone = AllocateWith({"/bin/true"});
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable) << gone;
  const absl::Status silent = AllocateWith({"/bin/sh", "-c", "exec sleep 600"});
  EXPECT_EQ(silent.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(silent.message()), HasSubstr("GPU-1"));
}

// A lender that answers one question and dies of the next, having read it.
[[noreturn]] void ServeOnce(int socket) {
  Received request;
  WireError error = WireError::kNone;
  while (ReceiveWire(socket, &request, &error) == ReceiveResult::kWouldBlock) {
  }
  const int memory = memfd_create("lent", 0);
  if (!SendWire(socket, MakeReply(request.message, absl::OkStatus()), memory).ok()) _exit(1);
  while (ReceiveWire(socket, &request, &error) == ReceiveResult::kWouldBlock) {
  }
  _exit(0);
}

TEST(Lender, AsksAnotherProcessWhereOneDiedWithAQuestion) {
  Lender lender({{"/proc/self/exe", "--serve-once"}, absl::Seconds(20)});
  for (int i = 0; i < 4; ++i) {
    const auto lent = lender.Allocate("GPU-1", kMiB);
    EXPECT_TRUE(lent.ok()) << lent.status();
  }
}

TEST(ServeLending, PassesTheDescriptorOnAndKeepsNothing) {
  const auto machine = HostMachine::Create({"n", *ParseHostDevices("1 x 4MiB", "n"), 0});
  ASSERT_TRUE(machine.ok());
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  std::thread server([&] { ServeLending(ends[1], **machine); });
  const auto ask = [&](const std::string& gpu, Bytes bytes) {
    WireMessage request;
    request.type = static_cast<uint16_t>(WireType::kMap);
    request.sequence = static_cast<uint64_t>(bytes);
    request.bytes = bytes;
    SetWireText(gpu, request.id, sizeof(request.id));
    EXPECT_TRUE(SendWire(ends[0], request).ok());
    Received reply;
    WireError error = WireError::kNone;
    while (ReceiveWire(ends[0], &reply, &error) == ReceiveResult::kWouldBlock) {
    }
    return reply;
  };
  for (int i = 0; i < 8; ++i) {
    const Received lent = ask("SIM-n-0", 4 * kMiB);  // All of it, again and again.
    EXPECT_TRUE(ReplyStatus(lent.message).ok());
    EXPECT_EQ(lseek(lent.descriptor.get(), 0, SEEK_END), 4 * kMiB);
  }
  EXPECT_EQ(ReplyStatus(ask("SIM-n-0", 5 * kMiB).message).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReplyStatus(ask("SIM-n-1", kMiB).message).code(), absl::StatusCode::kNotFound);
  close(ends[0]);
  server.join();
  close(ends[1]);
}

}  // namespace
}  // namespace hyperframes

// Started by a Lender, this program is what it lends with.
int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--serve-once") == 0) hyperframes::ServeOnce(3);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
