#include "agent/arena/descriptor_server.h"

#include <errno.h>
#include <glog/logging.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "common/clock.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// What an epoll event belongs to: the number of a connection, shifted, with the kind below it.
enum EventKind : uint64_t {
  kListenerEvent = 0,
  kStopEvent = 1,
  kSocketEvent = 2,
  kProcessEvent = 3
};
constexpr int kKindBits = 2;
constexpr int kMostEvents = 64;
constexpr int kMostDrained = 64;

uint64_t MakeEvent(EventKind kind, uint64_t number) { return number << kKindBits | kind; }

absl::Status Watch(int epoll, int descriptor, uint64_t event) {
  epoll_event interest = {};
  interest.events = EPOLLIN;
  interest.data.u64 = event;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &interest) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(std::string("epoll: ") + strerror(errno));
}

// A socket closed with unread packets resets its peer, who would then miss our last sentence.
void Drain(int socket) {
  Received ignored;
  WireError error;
  for (int i = 0; i < kMostDrained; ++i) {
    const ReceiveResult result = ReceiveWire(socket, &ignored, &error);
    if (result == ReceiveResult::kWouldBlock || result == ReceiveResult::kClosed) return;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorServer>> DescriptorServer::Start(
    DescriptorServerOptions options, LeaseTable* leases, DescriptorServerObserver* observer) {
  HF_ASSIGN_OR_RETURN(auto listener, ListeningSocket::Open(options.socket_path));
  return Start(std::move(options), std::move(listener), leases, observer);
}

absl::StatusOr<std::unique_ptr<DescriptorServer>> DescriptorServer::Start(
    DescriptorServerOptions options, std::unique_ptr<ListeningSocket> listener, LeaseTable* leases,
    DescriptorServerObserver* observer) {
  std::unique_ptr<DescriptorServer> server(
      new DescriptorServer(std::move(options), leases, observer, std::move(listener)));
  server->epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  server->stop_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!server->epoll_.valid() || !server->stop_.valid()) {
    return absl::ResourceExhaustedError(std::string("no descriptor for the descriptor channel: ") +
                                        strerror(errno));
  }
  HF_RETURN_IF_ERROR(
      Watch(server->epoll_.get(), server->listener_->descriptor(), MakeEvent(kListenerEvent, 0)));
  HF_RETURN_IF_ERROR(Watch(server->epoll_.get(), server->stop_.get(), MakeEvent(kStopEvent, 0)));
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

DescriptorServer::DescriptorServer(DescriptorServerOptions options, LeaseTable* leases,
                                   DescriptorServerObserver* observer,
                                   std::unique_ptr<ListeningSocket> listener)
    : options_(std::move(options)),
      leases_(leases),
      observer_(observer),
      listener_(std::move(listener)) {}

DescriptorServer::~DescriptorServer() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  PCHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

void DescriptorServer::Run() {
  absl::Time next_tick = MonotonicClock()->Now();
  while (true) {
    const absl::Time now = MonotonicClock()->Now();
    if (now >= next_tick) {
      leases_->Tick(&ProcessRuns);
      if (observer_ != nullptr) {
        for (const LeaseRecord& lease : leases_->Overdue()) observer_->LeaseOverdue(lease);
      }
      next_tick = now + options_.tick_interval;
    }
    epoll_event events[kMostEvents];
    const int timeout =
        static_cast<int>(absl::ToInt64Milliseconds(next_tick - MonotonicClock()->Now())) + 1;
    const int count = epoll_wait(epoll_.get(), events, kMostEvents, timeout > 0 ? timeout : 0);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == MakeEvent(kStopEvent, 0)) return;
      HandleEvent(events[i].data.u64);
    }
  }
}

void DescriptorServer::HandleEvent(uint64_t event) {
  const uint64_t number = event >> kKindBits;
  switch (static_cast<EventKind>(event & ((1 << kKindBits) - 1))) {
    case kListenerEvent:
      Accept();
      break;
    case kSocketEvent:
      HandleReadable(number);
      break;
    case kProcessEvent:
      Close(number);
      break;
    case kStopEvent:
      break;
  }
}

void DescriptorServer::Accept() {
  Connection connection;
  connection.socket.reset(
      accept4(listener_->descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.socket.valid()) {
    if (errno != EAGAIN && errno != ECONNABORTED) PLOG(WARNING) << "descriptor channel: accept";
    return;
  }
  const absl::Status admitted = Admit(&connection);
  if (!admitted.ok()) {
    LOG(WARNING) << "descriptor channel: connection refused: " << admitted.message();
    return;
  }
  const uint64_t number = next_connection_++;
  if (!Watch(epoll_.get(), connection.socket.get(), MakeEvent(kSocketEvent, number)).ok() ||
      !Watch(epoll_.get(), connection.process_descriptor.get(), MakeEvent(kProcessEvent, number))
           .ok()) {
    return;
  }
  connections_.emplace(number, std::move(connection));
  MutexLock lock(&mutex_);
  ++counters_.connections_opened;
}

absl::Status DescriptorServer::Admit(Connection* connection) {
  const WireMessage nothing;
  if (connections_.size() >= options_.most_connections) {
    Refuse(connection->socket.get(), nothing, WireError::kTooManyConnections);
    return WireErrorStatus(WireError::kTooManyConnections);
  }
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (getsockopt(connection->socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      (peer.uid != getuid() && peer.uid != 0)) {
    Refuse(connection->socket.get(), nothing, WireError::kForeignUser);
    return WireErrorStatus(WireError::kForeignUser);
  }
  connection->process_descriptor.reset(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  if (!connection->process_descriptor.valid()) {
    return absl::NotFoundError("process " + std::to_string(peer.pid) +
                               " has ended, or lives in another pid namespace");
  }
  connection->process = IdentifyProcess(peer.pid);
  return absl::OkStatus();
}

void DescriptorServer::Refuse(int socket, const WireMessage& request, WireError error) {
  {
    MutexLock lock(&mutex_);
    ++counters_.refused_messages;
  }
  const absl::Status sent = SendWire(socket, MakeReply(request, WireErrorStatus(error), error));
  if (!sent.ok()) VLOG(1) << "descriptor channel: " << sent.message();
  Drain(socket);
}

void DescriptorServer::HandleReadable(uint64_t number) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;  // Closed by an earlier event of the same round.
  Connection& connection = found->second;
  Received received;
  WireError error = WireError::kNone;
  switch (ReceiveWire(connection.socket.get(), &received, &error)) {
    case ReceiveResult::kWouldBlock:
      return;
    case ReceiveResult::kClosed:
      Close(number);
      return;
    case ReceiveResult::kMalformed:
      Refuse(connection.socket.get(), received.message, error);
      Close(number);
      return;
    case ReceiveResult::kMessage:
      if (!HandleMessage(&connection, std::move(received))) Close(number);
      return;
  }
}

bool DescriptorServer::HandleMessage(Connection* connection, Received received) {
  const WireMessage request = received.message;
  const auto type = static_cast<WireType>(request.type);
  if (!connection->said_hello && type != WireType::kHello) {
    Refuse(connection->socket.get(), request, WireError::kNoHello);
    return false;
  }
  absl::Status status;
  switch (type) {
    case WireType::kHello:
      return Hello(connection, std::move(received));
    case WireType::kMap:
      return MapLease(connection, request);
    case WireType::kReturn:
      status = ReturnLease(connection, request.id);
      break;
    case WireType::kOffer:
      status = OfferLease(connection, std::move(received));
      break;
    case WireType::kTransfer:
      return StartTransfer(connection, request);
    case WireType::kReported:
      leases_->HolderReported(connection->process);
      break;
    case WireType::kReply:
    case WireType::kRevoke:
    case WireType::kPage:
    case WireType::kStaging:
    case WireType::kOpenRemote:
    case WireType::kLost:
      Refuse(connection->socket.get(), request, WireError::kUnknownType);
      return false;
  }
  return SendWire(connection->socket.get(), MakeReply(request, status)).ok();
}

bool DescriptorServer::Hello(Connection* connection, Received received) {
  const std::string worker_id = received.message.id;
  absl::Status status;
  if (!worker_id.empty() && !IsWireId(worker_id)) {
    status =
        absl::InvalidArgumentError("hello: unreadable worker id '" + worker_id.substr(0, 64) + "'");
  } else if (connection->said_hello) {
    status = absl::FailedPreconditionError("hello was said already on this connection");
  }
  if (status.ok()) {
    connection->said_hello = true;
    connection->worker_id = worker_id;
    if (observer_ != nullptr) {
      observer_->WorkerConnected(worker_id, connection->process, std::move(received.descriptor));
    }
  }
  const absl::Status sent = SendWire(connection->socket.get(), MakeReply(received.message, status));
  return status.ok() && sent.ok();
}

bool DescriptorServer::MapLease(Connection* connection, const WireMessage& request) {
  auto mapping = leases_->Map(request.id, request.token, connection->process);
  if (!mapping.ok()) {
    return SendWire(connection->socket.get(), MakeReply(request, mapping.status())).ok();
  }
  AddMapping(connection, request.id);
  WireMessage reply = MakeReply(request, absl::OkStatus());
  reply.bytes = mapping->bytes;
  return SendWire(connection->socket.get(), reply, mapping->descriptor.get()).ok();
}

absl::Status DescriptorServer::OfferLease(Connection* connection, Received received) {
  if (!received.descriptor.valid()) {
    return absl::InvalidArgumentError("a lease was offered without its descriptor");
  }
  HF_RETURN_IF_ERROR(leases_->Adopt(received.message.id, received.message.token,
                                    std::move(received.descriptor), connection->process));
  AddMapping(connection, received.message.id);
  // Revoked before this agent started, perhaps in its predecessor's last moment.
  if (leases_->IsRevoking(received.message.id)) SendRevocation(received.message.id);
  return absl::OkStatus();
}

absl::Status DescriptorServer::ReturnLease(Connection* connection, const std::string& lease_id) {
  RemoveMapping(connection, lease_id);
  leases_->ReleaseHeld(lease_id, connection->process, "returned");
  return absl::OkStatus();
}

bool DescriptorServer::StartTransfer(Connection* connection, const WireMessage& request) {
  absl::StatusOr<UniqueFd> socket =
      observer_ == nullptr ? absl::UnimplementedError("this agent moves no frames to other nodes")
                           : observer_->StartTransfer(connection->worker_id, request.text);
  return SendWire(connection->socket.get(), MakeReply(request, socket.status()),
                  socket.ok() ? socket->get() : -1)
      .ok();
}

void DescriptorServer::AddMapping(Connection* connection, const std::string& lease_id) {
  if (!connection->mapped.insert(lease_id).second) return;
  MutexLock lock(&mutex_);
  holders_[lease_id] = connection->socket.get();
  ++counters_.mappings_opened;
}

void DescriptorServer::RemoveMapping(Connection* connection, const std::string& lease_id) {
  if (connection->mapped.erase(lease_id) == 0) return;
  MutexLock lock(&mutex_);
  const auto holder = holders_.find(lease_id);
  if (holder != holders_.end() && holder->second == connection->socket.get()) {
    holders_.erase(holder);
  }
  ++counters_.mappings_closed;
}

void DescriptorServer::Close(uint64_t number) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  const char* reason = ProcessRuns(connection.process) ? "disconnected" : "worker_died";
  const std::set<std::string> mapped = connection.mapped;
  for (const std::string& lease_id : mapped) RemoveMapping(&connection, lease_id);
  leases_->ReleaseAllHeld(mapped, connection.process, reason);
  if (observer_ != nullptr && connection.said_hello) {
    observer_->WorkerDisconnected(connection.worker_id, connection.process);
  }
  connections_.erase(found);  // Closing also takes the descriptors out of epoll.
  MutexLock lock(&mutex_);
  ++counters_.connections_closed;
}

bool DescriptorServer::SendRevocation(const std::string& lease_id, bool overdue) {
  WireMessage revoke;
  if (overdue) revoke.code = static_cast<uint16_t>(absl::StatusCode::kDeadlineExceeded);
  revoke.type = static_cast<uint16_t>(WireType::kRevoke);
  SetWireText(lease_id, revoke.id, sizeof(revoke.id));
  MutexLock lock(&mutex_);  // Keeps the socket open for the moment of the send.
  const auto holder = holders_.find(lease_id);
  return holder != holders_.end() && SendWire(holder->second, revoke).ok();
}

DescriptorServer::Counters DescriptorServer::counters() const {
  MutexLock lock(&mutex_);
  return counters_;
}

}  // namespace hyperframes
