// The real hfagent lends a real GPU's memory to processes that map it: it is killed and started
// again while a borrower copies, a borrower is killed, and NVML has the last word on every byte.
// With one GPU that one lends to itself. Skipped, and counted as skipped, where there is none.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/arena/descriptor_client.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/cuda/nvml.h"
#include "common/random_id.h"
#include "common/spawn.h"
#include "hyperframes/v1/agent.grpc.pb.h"

namespace hyperframes {
namespace {

constexpr Bytes kLent = 256 * kMiB;
constexpr Bytes kLooked = kMiB;
// What the driver may hold on a card beside leases without there being a context (0.5 GB).
constexpr Bytes kLessThanAContext = 64 * kMiB;
constexpr absl::Duration kBackWithin = absl::Seconds(2);

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

struct Order {  // Test to borrower: what to map. One process, one layout.
  char gpu[64] = "";
  char socket[108] = "";
  char lease[64] = "";
  char token[64] = "";
};

// One byte of a conversation between the test and a child.
bool Say(int channel, char word) { return write(channel, &word, 1) == 1; }
bool Hear(int channel, char word) {
  char heard = 0;
  return read(channel, &heard, 1) == 1 && heard == word;
}

class LentMemory {
 public:
  LentMemory(Device* gpu, Device* host, const Order& order) {
    DescriptorClientOptions options;
    options.socket_path = order.socket;
    options.reconnect_interval = absl::Milliseconds(20);
    agent_ = Value(DescriptorClient::Connect(options), "connect");
    const MappedLease lease = Value(agent_->MapLease(order.lease, order.token), "lease");
    memory_ = Value(gpu->Map(lease.descriptor, lease.bytes), "map");
    stream_ = Value(gpu->CreateStream(Direction::kOut, Tier::kPeer), "stream");
    lent_window_ = Value(host->Allocate(kLooked), "host memory");
    window_ =
        Value(gpu->Map(fcntl(lent_window_->descriptor(), F_DUPFD_CLOEXEC, 0), kLooked), "pin");
    Require(window_->WaitUntilUsable().ok(), "pin");
  }
  void Fill(char value) {
    Require(stream_->Fill(memory_->data(), static_cast<uint8_t>(value), kLent).ok(), "fill");
  }
  bool Holds(char value) {
    const char* const end = memory_->data() + kLent - kLooked;
    Require(stream_->Copy(window_->data(), end, kLooked).ok(), "copy");
    stream_->Record()->Synchronize();
    return std::count(window_->data(), window_->data() + kLooked, value) == kLooked;
  }
  void Return(const Order& order) {
    memory_.reset();
    Require(agent_->ReturnLease(order.lease).ok(), "return");
  }

 private:
  std::unique_ptr<DescriptorClient> agent_;
  std::unique_ptr<Memory> memory_, lent_window_, window_;
  std::unique_ptr<Stream> stream_;
};

[[noreturn]] void Borrow(int test) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Order order;
  if (read(test, &order, sizeof(order)) != sizeof(order)) _exit(0);  // No GPU: nothing to do.
  setenv("CUDA_VISIBLE_DEVICES", order.gpu, /*overwrite=*/1);
  CudaMachineOptions options;
  options.host_bytes = kLooked;
  const auto machine = Value(CudaMachine::Open(options), "open");
  LentMemory lent(machine->gpus()[0], machine->host(), order);
  Require(lent.Holds(0), "lent memory is not zeroed");
  lent.Fill('a');
  Require(lent.Holds('a'), "other bytes than were written");
  Require(Say(test, 'm') && Hear(test, 'k'), "no word of the kill");
  Require(lent.Holds('a'), "the agent's death changed the bytes");
  lent.Fill('b');
  Require(lent.Holds('b'), "no writing after the agent's death");
  Require(Say(test, 'w') && Hear(test, 'r'), "no word of the restart");
  Require(lent.Holds('b'), "adoption changed the bytes");
  lent.Return(order);
  Require(Say(test, 'd') && Hear(test, 'e'), "no word of the end");
  _exit(0);
}

class Borrower {
 public:
  Borrower() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) abort();
    channel_ = ends[0];
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      Borrow(ends[1]);
    }
    close(ends[1]);
  }
  ~Borrower() {
    close(channel_);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  int channel() const { return channel_; }
  pid_t pid() const { return pid_; }

 private:
  int channel_;
  pid_t pid_;
};

class Agent {
 public:
  explicit Agent(const std::string& directory) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) abort();
    SpawnOptions spawn;
    spawn.arguments = {"agent/hfagent",
                       "--backend=cuda",
                       "--node=n",
                       "--coordinator=127.0.0.1:1",
                       "--listen-address=127.0.0.1:0",
                       "--http-address=127.0.0.1:0",
                       "--host-bytes=0",
                       "--probe-path=" + directory + "/probe",
                       "--run-directory=" + directory};
    spawn.output = ends[1];
    pid_ = Spawn(spawn).value();
    close(ends[1]);
    char line[512] = "";
    const ssize_t got = read(ends[0], line, sizeof(line) - 1);
    close(ends[0]);
    const std::string ready(line, static_cast<size_t>(std::max<ssize_t>(got, 0)));
    const size_t at = ready.find("grpc=");
    if (at == std::string::npos) return;
    stub_ = v1::Agent::NewStub(grpc::CreateChannel(
        ready.substr(at + 5, ready.find(' ', at) - at - 5), grpc::InsecureChannelCredentials()));
  }
  ~Agent() { Kill(); }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  bool ready() const { return stub_ != nullptr; }
  grpc::Status Lend(const std::string& lease, const std::string& token, const std::string& gpu) {
    v1::PrepareLeaseRequest prepare;
    prepare.set_epoch(1);
    prepare.set_lease_id(lease);
    prepare.set_job_id("job");
    prepare.set_token(token);
    prepare.set_device(gpu);
    prepare.set_tier(v1::TIER_PEER);
    prepare.set_bytes(kLent);
    v1::LeaseResponse response;
    grpc::ClientContext first, second;
    const grpc::Status prepared = stub_->PrepareLease(&first, prepare, &response);
    if (!prepared.ok()) return prepared;
    return stub_->CommitLease(&second, Named(lease), &response);
  }
  void Release(const std::string& lease) {
    v1::LeaseResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ReleaseLease(&context, Named(lease), &response).ok());
  }

 private:
  static v1::LeaseRequest Named(const std::string& lease) {
    v1::LeaseRequest request;
    request.set_epoch(1);
    request.set_lease_id(lease);
    return request;
  }
  pid_t pid_ = 0;
  std::unique_ptr<v1::Agent::Stub> stub_;
};

Bytes FreeOn(const std::string& uuid) { return *(*Nvml::Get())->FreeBytes(uuid); }

// How long it took until `free` bytes were free again; over kBackWithin when they were not.
absl::Duration UntilFree(const std::string& uuid, Bytes free) {
  const absl::Time begin = absl::Now();
  while (FreeOn(uuid) < free && absl::Now() - begin < 2 * kBackWithin) {
  }
  return absl::Now() - begin;
}

std::string WorkingDirectory() {
  char path[4096] = "";
  return getcwd(path, sizeof(path)) == nullptr ? "." : path;
}

double Mib(Bytes bytes) { return static_cast<double>(bytes) / kMiB; }

class GpuLendingTest : public ::testing::Test {
 protected:
  GpuLendingTest() {
    char name[] = "/tmp/hflend.XXXXXX";
    directory_ = mkdtemp(name);
    // The contexts that measuring links takes would be counted as the agent's.
    std::ofstream(directory_ + "/probe") << "#!/bin/sh\n[ \"$1\" = links ] || exec \""
                                         << WorkingDirectory() << "/agent/hfprobe\" \"$@\"\n";
    chmod((directory_ + "/probe").c_str(), 0700);
  }
  ~GpuLendingTest() override {
    if (system(("rm -rf " + directory_).c_str()) != 0) ADD_FAILURE() << directory_;
  }
  Order OrderOf(const std::string& lease) const {
    Order order;
    std::strncpy(order.gpu, computes_.c_str(), sizeof(order.gpu) - 1);
    std::strncpy(order.socket, (directory_ + "/agent.sock").c_str(), sizeof(order.socket) - 1);
    std::strncpy(order.lease, lease.c_str(), sizeof(order.lease) - 1);
    std::strncpy(order.token, token_.c_str(), sizeof(order.token) - 1);
    return order;
  }
  void Send(const Borrower& borrower, const std::string& lease) const {
    const Order order = OrderOf(lease);
    ASSERT_EQ(write(borrower.channel(), &order, sizeof(order)),
              static_cast<ssize_t>(sizeof(order)));
  }

  std::string directory_;
  std::string lends_, computes_;
  const std::string token_ = RandomHex(16);
};

TEST_F(GpuLendingTest, OutlivesItsAgentIsAdoptedAndComesBackToTheByte) {
  // Forked before anything of CUDA, NVML or gRPC runs here: none survives a fork.
  Borrower careful, killed;
  const absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  const std::vector<NodeGpu> gpus = nvml.ok() ? (*nvml)->List() : std::vector<NodeGpu>();
  if (gpus.empty()) GTEST_SKIP() << "needs a GPU and NVML";
  computes_ = gpus.front().uuid;
  lends_ = gpus.back().uuid;
  const Bytes before = FreeOn(lends_);
  auto agent = std::make_unique<Agent>(directory_);
  ASSERT_TRUE(agent->ready());
  EXPECT_EQ(FreeOn(lends_), before) << "an idle agent holds memory of the GPU";

  ASSERT_TRUE(agent->Lend("one", token_, lends_).ok());
  const Bytes taken = before - FreeOn(lends_);
  printf("lending %.0f MiB takes %.0f MiB of the card\n", Mib(kLent), Mib(taken));
  EXPECT_GE(taken, kLent);
  EXPECT_LT(taken, kLent + kLessThanAContext) << "the agent made a context";
  Send(careful, "one");
  ASSERT_TRUE(Hear(careful.channel(), 'm'));
  const Bytes mapped = FreeOn(lends_);

  agent->Kill();
  ASSERT_TRUE(Say(careful.channel(), 'k') && Hear(careful.channel(), 'w'));
  agent = std::make_unique<Agent>(directory_);
  ASSERT_TRUE(agent->ready());
  grpc::Status lent;
  for (const absl::Time end = absl::Now() + absl::Seconds(10); absl::Now() < end;) {
    lent = agent->Lend("two", token_, lends_);  // UNAVAILABLE until the borrower has reported.
    if (lent.ok()) break;
  }
  ASSERT_TRUE(lent.ok()) << lent.error_message();
  agent->Release("two");
  printf("after adoption the card has %.0f MiB less free than before the kill\n",
         Mib(mapped - FreeOn(lends_)));
  EXPECT_LT(mapped - FreeOn(lends_), kLessThanAContext) << "the lease was allocated anew";
  ASSERT_TRUE(Say(careful.channel(), 'r') && Hear(careful.channel(), 'd'));
  // Page tables stay with the borrower as long as it lives.
  const absl::Duration returned = UntilFree(lends_, mapped + kLent - kLessThanAContext);
  EXPECT_LT(returned, kBackWithin) << "a lease that was adopted and returned is not free";
  ASSERT_TRUE(Say(careful.channel(), 'e'));
  waitpid(careful.pid(), nullptr, 0);
  const absl::Duration ended = UntilFree(lends_, before);
  EXPECT_LT(ended, kBackWithin) << Mib(before - FreeOn(lends_)) << " MiB are left";

  ASSERT_TRUE(agent->Lend("three", token_, lends_).ok());
  Send(killed, "three");
  ASSERT_TRUE(Hear(killed.channel(), 'm'));
  kill(killed.pid(), SIGKILL);
  const absl::Duration back = UntilFree(lends_, before);
  EXPECT_LT(back, kBackWithin) << Mib(before - FreeOn(lends_)) << " MiB are left";
  printf("all bytes were back %.3f s after a return, %.3f s after an end, %.3f s after a kill -9\n",
         absl::ToDoubleSeconds(returned), absl::ToDoubleSeconds(ended),
         absl::ToDoubleSeconds(back));
  agent.reset();
  EXPECT_LT(UntilFree(lends_, before), kBackWithin);
  EXPECT_EQ(FreeOn(lends_), before);
}

}  // namespace
}  // namespace hyperframes
