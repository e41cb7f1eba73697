// What the tests of transfers share: two nodes on this machine, each with its hftransfer as a real
// process, and the end of a training process.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TRANSFER_FIXTURE_H_
#define HYPERFRAMES_AGENT_TRANSFER_TRANSFER_FIXTURE_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/arena/channel_fixture.h"
#include "agent/device/host/host_device.h"
#include "agent/transfer/transfer_channel.h"
#include "common/spawn.h"
#include "common/unique_fd.h"

namespace hyperframes {

// One hftransfer. Killed on destruction, unless it has ended.
class TransferProcess {
 public:
  // `inherited` (or -1) becomes its descriptor 3.
  TransferProcess(std::vector<std::string> arguments, int inherited) {
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    arguments.insert(arguments.begin(), "agent/hftransfer");
    SpawnOptions spawn;
    spawn.arguments = std::move(arguments);
    spawn.output = out[1];
    spawn.inherited = inherited;
    pid_ = Spawn(spawn).value();
    close(out[1]);
    out_.reset(out[0]);
  }
  ~TransferProcess() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // SIGSTOP: returns once it has really stopped, for until then it goes on serving.
  void Signal(int number) const {
    EXPECT_EQ(kill(pid_, number), 0);
    if (number != SIGSTOP) return;
    siginfo_t stopped;
    EXPECT_EQ(waitid(P_PID, pid_, &stopped, WSTOPPED), 0);
  }
  // What it says once it is ready, after "address=".
  std::string ReadAddress() const {
    std::string line;
    char c = 0;
    while (read(out_.get(), &c, 1) == 1 && c != '\n') line += c;
    const size_t at = line.find("address=");
    EXPECT_NE(at, std::string::npos) << "hftransfer said '" << line << "'";
    return at == std::string::npos ? "" : line.substr(at + 8);
  }
  // Its exit code once it has ended by itself; -1: it has not.
  int WaitForExit() {
    int status = 0;
    const bool ended = Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    if (!ended) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  UniqueFd out_;
};

// Node b lends through agent_; node a computes on device_.
class TransferTest : public ChannelTest {
 protected:
  static constexpr Bytes kLeaseBytes = 16 * kMiB;

  TransferTest() {
    HostDeviceOptions options;
    options.uuid = "SIM-near-0";
    options.total_bytes = kGiB;
    device_ = std::move(HostDevice::Create(options).value());
  }

  void StartFar(const std::string& deadline = "20s") {
    int life[2];
    ASSERT_EQ(pipe2(life, O_CLOEXEC), 0);
    const UniqueFd far_end(life[0]);
    lifeline_.reset(life[1]);
    far_ = std::make_unique<TransferProcess>(
        std::vector<std::string>{"--agent-socket", directory_ + "/socket", "--deadline", deadline,
                                 "--lifeline", "3"},
        far_end.get());
    address_ = far_->ReadAddress();
  }
  void StartNear(const std::string& deadline = "20s",
                 absl::Duration channel_deadline = absl::Seconds(40),
                 const std::string& credit = "64MiB", const std::string& bandwidth = "0") {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    UniqueFd theirs(ends[1]);
    near_ = std::make_unique<TransferProcess>(
        std::vector<std::string>{"--worker-descriptor", "3", "--deadline", deadline, "--credit",
                                 credit, "--bandwidth", bandwidth},
        theirs.get());
    worker_socket_.reset(dup(ends[0]));
    channel_ = TransferChannel::Adopt(UniqueFd(ends[0]), channel_deadline);
  }
  RemoteLease Lease(const std::string& id, const std::string& token) const {
    RemoteLease lease;
    lease.lease_id = id;
    lease.token = token;
    lease.node = "b";
    lease.address = address_;
    lease.bytes = kLeaseBytes;
    lease.staging_bytes = kMiB;
    return lease;
  }
  // A lease of node b, open here.
  std::unique_ptr<Memory> OpenLease(const std::string& id = "lease-1") {
    auto memory = channel_->Open(device_.get(), Lease(id, agent_->Lend(id, kLeaseBytes)));
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }

  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<TransferProcess> far_;
  std::unique_ptr<TransferProcess> near_;
  std::string address_;
  UniqueFd lifeline_;       // far_ ends with it, and with its last peer.
  UniqueFd worker_socket_;  // channel_'s, for closing it as the process's death would.
  std::shared_ptr<TransferChannel> channel_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TRANSFER_FIXTURE_H_
