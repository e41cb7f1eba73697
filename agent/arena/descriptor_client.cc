#include "agent/arena/descriptor_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "agent/arena/connected_socket.h"
#include "agent/arena/descriptor_wire.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

constexpr char kOverdue[] = " overdue";  // Ends no lease id.

struct KeptLease {
  UniqueFd descriptor;
  Bytes bytes = 0;
  std::string token;
};

WireMessage MakeRequest(WireType type, const std::string& id) {
  WireMessage message;
  message.type = static_cast<uint16_t>(type);
  SetWireText(id, message.id, sizeof(message.id));
  return message;
}

class Channel;
// Every channel of this process, so that a forked child can drop what it inherited. Leaked: a fork
// may happen while the program ends.
struct ForkRegistry {
  std::mutex mutex;
  std::set<Channel*> channels;
  void Add(Channel* channel) {
    std::lock_guard<std::mutex> lock(mutex);
    channels.insert(channel);
  }
};
ForkRegistry& Registry() {
  static ForkRegistry* const registry = new ForkRegistry;
  return *registry;
}

// Everything behind a DescriptorClient. Apart from it, because a forked child must leak it: its
// condition variables may have waiters that do not exist there, and destroying one would hang.
class Channel {
 public:
  explicit Channel(DescriptorClientOptions options) : options_(std::move(options)) {}

  absl::Status Start();
  void Stop();
  absl::StatusOr<MappedLease> MapLease(const std::string& lease_id, const std::string& token);
  absl::Status ReturnLease(const std::string& lease_id);
  absl::StatusOr<UniqueFd> StartTransfer(const std::string& gpu);
  bool TakeRevocation(std::string* lease_id);

  void BeforeFork() HF_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void AfterForkInParent() HF_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }
  // The child must hold neither the connection nor the leases' memory: it would keep both alive
  // after the worker has died.
  void AfterForkInChild() HF_NO_THREAD_SAFETY_ANALYSIS {
    socket_.reset();
    wake_.reset();
    counters_.reset();
    kept_.clear();
    mutex_.Unlock();
  }

 private:
  // One connection attempt up to the point where the agent knows all that we hold.
  absl::StatusOr<UniqueFd> Handshake();
  absl::StatusOr<Received> Exchange(int socket, WireMessage message, int descriptor);
  absl::Status OfferAll(int socket);
  // One request on the running connection, reconnected if need be within the timeout.
  absl::StatusOr<Received> Call(WireMessage message);
  void Run();
  void ServeConnection();
  // Waits for `socket` to be readable, for a stop, or for `timeout`. False: stopped or timed out.
  bool WaitReadable(int socket, absl::Duration timeout);
  void HandleUnasked(const WireMessage& message);
  void Keep(const Received& grant) HF_REQUIRES(mutex_);
  void SendOwedReturns(int socket);
  void Drop();

  const DescriptorClientOptions options_;
  Mutex call_mutex_ HF_ACQUIRED_BEFORE(mutex_);  // One request at a time.
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ HF_GUARDED_BY(mutex_) = false;
  bool connected_ HF_GUARDED_BY(mutex_) = false;
  UniqueFd socket_ HF_GUARDED_BY(mutex_);
  uint64_t next_sequence_ HF_GUARDED_BY(mutex_) = 1;
  WireMessage awaited_ HF_GUARDED_BY(mutex_);  // The request under way; sequence 0: none.
  bool answered_ HF_GUARDED_BY(mutex_) = false;
  Received answer_ HF_GUARDED_BY(mutex_);
  std::map<std::string, KeptLease> kept_ HF_GUARDED_BY(mutex_);
  std::set<std::string> owed_returns_ HF_GUARDED_BY(mutex_);  // Returned while the agent was away.
  std::deque<std::string> revocations_ HF_GUARDED_BY(mutex_);
  std::set<std::string> revoked_ HF_GUARDED_BY(mutex_);  // Once, and once as overdue.
  UniqueFd wake_;
  UniqueFd counters_;
  std::thread thread_;
};

void RegisterForkHandlers() {
  static const int registered = pthread_atfork(
      [] {
        Registry().mutex.lock();
        for (Channel* channel : Registry().channels) channel->BeforeFork();
      },
      [] {
        for (Channel* channel : Registry().channels) channel->AfterForkInParent();
        Registry().mutex.unlock();
      },
      [] {
        for (Channel* channel : Registry().channels) channel->AfterForkInChild();
        Registry().mutex.unlock();
      });
  (void)registered;
}

absl::Status Channel::Start() {
  wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) {
    return absl::ResourceExhaustedError(std::string("no eventfd: ") + strerror(errno));
  }
  if (options_.counters_descriptor >= 0) {
    counters_.reset(fcntl(options_.counters_descriptor, F_DUPFD_CLOEXEC, 0));
    if (!counters_.valid()) {
      return absl::InvalidArgumentError(std::string("counters page: ") + strerror(errno));
    }
  }
  HF_ASSIGN_OR_RETURN(UniqueFd socket, Handshake());
  {
    MutexLock lock(&mutex_);
    socket_ = std::move(socket);
    connected_ = true;
  }
  RegisterForkHandlers();
  Registry().Add(this);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void Channel::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  const uint64_t one = 1;
  // Only a full counter fails, and then the thread has been woken already.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  std::lock_guard<std::mutex> lock(Registry().mutex);
  Registry().channels.erase(this);
}

bool Channel::WaitReadable(int socket, absl::Duration timeout) {
  pollfd watched[2] = {{socket, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  const bool endless = timeout == absl::InfiniteDuration();
  const absl::Time end = MonotonicClock()->Now() + timeout;
  while (true) {
    const int64_t left =
        endless ? -1 : absl::ToInt64Milliseconds(end - MonotonicClock()->Now()) + 1;
    if (!endless && left <= 0) return false;
    const int ready = poll(watched, 2, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 && watched[1].revents == 0;
  }
}

absl::StatusOr<Received> Channel::Exchange(int socket, WireMessage message, int descriptor) {
  {
    MutexLock lock(&mutex_);
    message.sequence = next_sequence_++;
  }
  HF_RETURN_IF_ERROR(SendWire(socket, message, descriptor));
  const absl::Time end = MonotonicClock()->Now() + options_.timeout;
  while (true) {
    Received received;
    WireError error = WireError::kNone;
    switch (ReceiveWire(socket, &received, &error)) {
      case ReceiveResult::kMalformed:
        return WireErrorStatus(error);
      case ReceiveResult::kClosed:
        return absl::UnavailableError("the agent closed the descriptor channel " +
                                      options_.socket_path);
      case ReceiveResult::kWouldBlock:
        if (!WaitReadable(socket, end - MonotonicClock()->Now())) {
          return absl::DeadlineExceededError("the agent on " + options_.socket_path +
                                             " does not answer");
        }
        break;
      case ReceiveResult::kMessage:
        // Sequence 0 answers a connection that was refused before it said anything.
        if (received.message.type == static_cast<uint16_t>(WireType::kReply) &&
            (received.message.sequence == message.sequence || received.message.sequence == 0)) {
          return received;
        }
        HandleUnasked(received.message);
        break;
    }
  }
}

absl::StatusOr<UniqueFd> Channel::Handshake() {
  HF_ASSIGN_OR_RETURN(UniqueFd socket, ConnectSocket(options_.socket_path));
  WireMessage hello = MakeRequest(WireType::kHello, options_.worker_id);
  SetWireText(options_.job_id, hello.text, sizeof(hello.text));
  HF_ASSIGN_OR_RETURN(Received reply, Exchange(socket.get(), hello, counters_.get()));
  HF_RETURN_IF_ERROR(ReplyStatus(reply.message));
  HF_RETURN_IF_ERROR(OfferAll(socket.get()));
  return socket;
}

absl::Status Channel::OfferAll(int socket) {
  std::vector<std::pair<std::string, KeptLease>> offers;
  std::set<std::string> returns;
  {
    MutexLock lock(&mutex_);
    returns = owed_returns_;
    for (const auto& [lease_id, kept] : kept_) {
      KeptLease copy;
      copy.descriptor.reset(fcntl(kept.descriptor.get(), F_DUPFD_CLOEXEC, 0));
      copy.bytes = kept.bytes;
      copy.token = kept.token;
      offers.emplace_back(lease_id, std::move(copy));
    }
  }
  for (const std::string& lease_id : returns) {
    const WireMessage message = MakeRequest(WireType::kReturn, lease_id);
    HF_ASSIGN_OR_RETURN(Received reply, Exchange(socket, message, -1));
    MutexLock lock(&mutex_);
    owed_returns_.erase(lease_id);
  }
  for (const auto& [lease_id, kept] : offers) {
    WireMessage message = MakeRequest(WireType::kOffer, lease_id);
    message.bytes = kept.bytes;
    SetWireText(kept.token, message.token, sizeof(message.token));
    HF_ASSIGN_OR_RETURN(Received reply, Exchange(socket, message, kept.descriptor.get()));
    if (ReplyStatus(reply.message).ok()) continue;
    // The agent gave the lease up while it could not reach us: the caller must let it go too.
    HandleUnasked(MakeRequest(WireType::kRevoke, lease_id));
  }
  const WireMessage reported = MakeRequest(WireType::kReported, "");
  HF_ASSIGN_OR_RETURN(Received reply, Exchange(socket, reported, -1));
  return ReplyStatus(reply.message);
}

void Channel::HandleUnasked(const WireMessage& message) {
  if (message.type != static_cast<uint16_t>(WireType::kRevoke)) return;  // A late reply.
  MutexLock lock(&mutex_);
  // Only leases that we hold count, so a confused agent cannot grow the queue.
  const std::string once = std::string(message.id) + (message.code == 0 ? "" : kOverdue);
  if (kept_.count(message.id) > 0 && revoked_.insert(once).second) {
    revocations_.push_back(message.id);
  }
}

void Channel::Run() {
  while (true) {
    ServeConnection();
    while (true) {
      {
        MutexLock lock(&mutex_);
        if (stopping_) return;
      }
      absl::StatusOr<UniqueFd> socket = Handshake();
      MutexLock lock(&mutex_);
      if (socket.ok()) {
        socket_ = std::move(*socket);
        connected_ = true;
        changed_.NotifyAll();
        break;
      }
      changed_.WaitFor(&mutex_, options_.reconnect_interval,
                       [this]() HF_NO_THREAD_SAFETY_ANALYSIS { return stopping_; });
    }
  }
}

// Reads until the connection ends or the client stops.
void Channel::ServeConnection() {
  int socket = -1;
  {
    MutexLock lock(&mutex_);
    socket = socket_.get();  // Only this thread closes it.
  }
  SendOwedReturns(socket);
  while (WaitReadable(socket, absl::InfiniteDuration())) {
    Received received;
    WireError error = WireError::kNone;
    const ReceiveResult result = ReceiveWire(socket, &received, &error);
    if (result == ReceiveResult::kWouldBlock) continue;
    if (result != ReceiveResult::kMessage) break;
    if (received.message.type != static_cast<uint16_t>(WireType::kReply)) {
      HandleUnasked(received.message);
      continue;
    }
    MutexLock lock(&mutex_);
    if (awaited_.sequence == 0 || received.message.sequence != awaited_.sequence) continue;
    Keep(received);
    answer_ = std::move(received);
    answered_ = true;
    changed_.NotifyAll();
  }
  Drop();
}

// Duplicates a granted descriptor here, on the thread that also reconnects: were it left to the
// caller, an agent restarted in between would be told that we hold nothing.
void Channel::Keep(const Received& grant) {
  if (awaited_.type != static_cast<uint16_t>(WireType::kMap) || grant.message.code != 0 ||
      grant.message.bytes <= 0 || !grant.descriptor.valid()) {
    return;
  }
  KeptLease kept;
  kept.bytes = grant.message.bytes;
  kept.token = awaited_.token;
  kept.descriptor.reset(fcntl(grant.descriptor.get(), F_DUPFD_CLOEXEC, 0));
  if (kept.descriptor.valid()) kept_[awaited_.id] = std::move(kept);
}

// What was returned while no connection stood, or while the offers were under way.
void Channel::SendOwedReturns(int socket) {
  MutexLock lock(&mutex_);
  for (auto lease_id = owed_returns_.begin(); lease_id != owed_returns_.end();) {
    WireMessage message = MakeRequest(WireType::kReturn, *lease_id);
    message.sequence = next_sequence_++;
    if (!SendWire(socket, message).ok()) return;  // The next connection makes good for it.
    lease_id = owed_returns_.erase(lease_id);
  }
}

void Channel::Drop() {
  MutexLock lock(&mutex_);
  connected_ = false;
  socket_.reset();
  changed_.NotifyAll();
}

absl::StatusOr<Received> Channel::Call(WireMessage message) {
  MutexLock one_at_a_time(&call_mutex_);
  MutexLock lock(&mutex_);
  const absl::Time end = MonotonicClock()->Now() + options_.timeout;
  changed_.WaitFor(&mutex_, options_.timeout,
                   [this]() HF_NO_THREAD_SAFETY_ANALYSIS { return connected_ || stopping_; });
  if (!connected_) {
    return absl::UnavailableError("no agent listens on " + options_.socket_path +
                                  ": it is started again or gone; try again");
  }
  message.sequence = next_sequence_++;
  awaited_ = message;
  answered_ = false;
  absl::Status sent = SendWire(socket_.get(), message);
  const auto over = [this]() HF_NO_THREAD_SAFETY_ANALYSIS {
    return answered_ || !connected_ || stopping_;
  };
  if (sent.ok()) changed_.WaitFor(&mutex_, end - MonotonicClock()->Now(), over);
  awaited_.sequence = 0;
  HF_RETURN_IF_ERROR(sent);
  if (answered_) return std::move(answer_);
  if (!connected_ || stopping_) {
    return absl::UnavailableError("the agent on " + options_.socket_path +
                                  " went away during a request: try again");
  }
  return absl::DeadlineExceededError("the agent on " + options_.socket_path + " is silent for " +
                                     absl::FormatDuration(options_.timeout));
}

absl::StatusOr<MappedLease> Channel::MapLease(const std::string& lease_id,
                                              const std::string& token) {
  if (!IsWireId(lease_id)) return absl::NotFoundError("no lease '" + lease_id.substr(0, 64) + "'");
  WireMessage message = MakeRequest(WireType::kMap, lease_id);
  if (token.size() >= sizeof(message.token)) {
    return absl::PermissionDeniedError("a lease's token has 32 hex digits");
  }
  SetWireText(token, message.token, sizeof(message.token));
  HF_ASSIGN_OR_RETURN(Received reply, Call(message));
  HF_RETURN_IF_ERROR(ReplyStatus(reply.message));
  if (!reply.descriptor.valid()) {
    return absl::ResourceExhaustedError("lease " + lease_id +
                                        " came without its descriptor: raise ulimit -n");
  }
  MutexLock lock(&mutex_);
  if (kept_.count(lease_id) == 0) {
    return absl::ResourceExhaustedError("no descriptor left to keep lease " + lease_id +
                                        ": raise ulimit -n");
  }
  return MappedLease{reply.descriptor.release(), reply.message.bytes};
}

absl::StatusOr<UniqueFd> Channel::StartTransfer(const std::string& gpu) {
  WireMessage message = MakeRequest(WireType::kTransfer, "");
  SetWireText(gpu, message.text, sizeof(message.text));
  HF_ASSIGN_OR_RETURN(Received reply, Call(message));
  HF_RETURN_IF_ERROR(ReplyStatus(reply.message));
  if (reply.descriptor.valid()) return std::move(reply.descriptor);
  return absl::ResourceExhaustedError("hftransfer's socket did not arrive: raise ulimit -n");
}

absl::Status Channel::ReturnLease(const std::string& lease_id) {
  {
    MutexLock lock(&mutex_);
    if (kept_.erase(lease_id) == 0) {
      return absl::NotFoundError("this process does not hold lease '" + lease_id.substr(0, 64) +
                                 "'");
    }
    revoked_.erase(lease_id);
    revoked_.erase(lease_id + kOverdue);
    // Owed from now on: whatever happens to this request, the next connection makes good for it.
    owed_returns_.insert(lease_id);
    if (!connected_) return absl::OkStatus();
  }
  const WireMessage message = MakeRequest(WireType::kReturn, lease_id);
  if (!Call(message).ok()) return absl::OkStatus();  // Still owed.
  MutexLock lock(&mutex_);
  owed_returns_.erase(lease_id);
  return absl::OkStatus();
}

bool Channel::TakeRevocation(std::string* lease_id) {
  MutexLock lock(&mutex_);
  while (!revocations_.empty()) {
    *lease_id = std::move(revocations_.front());
    revocations_.pop_front();
    if (kept_.count(*lease_id) > 0) return true;  // Else returned meanwhile.
  }
  return false;
}

class DescriptorClientImpl final : public DescriptorClient {
 public:
  explicit DescriptorClientImpl(std::unique_ptr<Channel> channel)
      : process_(getpid()), channel_(channel.release()) {}
  ~DescriptorClientImpl() override {
    if (InForkedChild()) return;  // See Channel.
    channel_->Stop();
    delete channel_;
  }

  absl::StatusOr<MappedLease> MapLease(const std::string& lease_id,
                                       const std::string& token) override {
    if (InForkedChild()) return ForkedChildError();
    return channel_->MapLease(lease_id, token);
  }
  absl::Status ReturnLease(const std::string& lease_id) override {
    if (InForkedChild()) return ForkedChildError();
    return channel_->ReturnLease(lease_id);
  }
  absl::StatusOr<UniqueFd> StartTransfer(const std::string& gpu) override {
    if (InForkedChild()) return ForkedChildError();
    return channel_->StartTransfer(gpu);
  }
  bool TakeRevocation(std::string* lease_id) override {
    return !InForkedChild() && channel_->TakeRevocation(lease_id);
  }

 private:
  bool InForkedChild() const { return getpid() != process_; }
  static absl::Status ForkedChildError() {
    return absl::FailedPreconditionError(
        "the descriptor channel belongs to the process that opened it, and this is a forked "
        "child: use frames in the parent, or connect anew here");
  }

  const pid_t process_;
  Channel* const channel_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorClient>> DescriptorClient::Connect(
    DescriptorClientOptions options) {
  auto channel = std::make_unique<Channel>(std::move(options));
  HF_RETURN_IF_ERROR(channel->Start());
  return std::unique_ptr<DescriptorClient>(new DescriptorClientImpl(std::move(channel)));
}

}  // namespace hyperframes
