#include "agent/transfer/far_server.h"

#include <glog/logging.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/random_id.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kLookUp = absl::Milliseconds(100);  // From idle waits, for the end.

absl::Status CheckRange(const PeerMessage& message, const PeerHello& hello) {
  // Both comparisons without a sum that could wrap.
  if (message.bytes > 0 && message.slot >= 0 && message.bytes <= hello.bytes &&
      message.slot <= hello.bytes - message.bytes) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(message.bytes, " bytes at ", message.slot,
                                            " lie outside the lease ", hello.lease, " of ",
                                            hello.bytes, " bytes"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FarServer>> FarServer::Start(FarServerOptions options,
                                                            Device* device, LeaseSource* leases,
                                                            TransportMaker* transports) {
  HF_ASSIGN_OR_RETURN(auto listener, TcpListener::Listen(options.listen_address));
  HF_ASSIGN_OR_RETURN(auto fills, device->CreateStream(Direction::kOut, Tier::kPeer));
  std::unique_ptr<FarServer> server(
      new FarServer(std::move(options), leases, transports, std::move(listener), std::move(fills)));
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

FarServer::FarServer(FarServerOptions options, LeaseSource* leases, TransportMaker* transports,
                     std::unique_ptr<TcpListener> listener, std::unique_ptr<Stream> fills)
    : options_(std::move(options)),
      leases_(leases),
      transports_(transports),
      listener_(std::move(listener)),
      fills_(std::move(fills)) {}

FarServer::~FarServer() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  for (Connection& connection : connections_) connection.socket->Abort();
  ForgetFinished(/*all=*/true);
}

void FarServer::Run() {
  while (!stopping_) {
    std::unique_ptr<TcpSocket> socket = listener_->Accept(kLookUp, options_.deadline);
    ForgetFinished(/*all=*/false);
    TakeRevocations();
    if (socket == nullptr) continue;
    if (connections_.size() >= options_.most_connections) {
      WritePeerMessage(socket.get(), MakeRefusal(absl::ResourceExhaustedError(
                                         "as many peers as one hftransfer serves are connected")))
          .IgnoreError();
      continue;
    }
    connections_.emplace_back();
    Connection* const connection = &connections_.back();
    connection->socket = std::move(socket);
    connection->thread = std::thread([this, connection] {
      const absl::Status ended = Serve(connection->socket.get());
      if (!ended.ok()) LOG(WARNING) << ended.message();
      connection->socket->Abort();
      connection->over = true;
    });
  }
}

void FarServer::ForgetFinished(bool all) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (!all && !it->over) {
      ++it;
      continue;
    }
    it->thread.join();
    it = connections_.erase(it);
  }
}

absl::Status FarServer::Serve(TcpSocket* socket) {
  PeerHello hello;
  HF_RETURN_IF_ERROR(socket->Read(&hello, sizeof(hello)));
  absl::Status status = CheckHello(hello);
  absl::StatusOr<Lease*> lease = status.ok() ? Acquire(hello) : status;
  if (lease.ok()) {
    const auto release = absl::MakeCleanup([&] { Release(hello.lease); });
    status = ServeLease(socket, hello, **lease);
  } else {
    status = lease.status();
  }
  // Its end may already be gone; then nobody needs the reason.
  if (!status.ok()) WritePeerMessage(socket, MakeRefusal(status)).IgnoreError();
  return status;
}

absl::Status FarServer::ServeLease(TcpSocket* socket, const PeerHello& hello, const Lease& lease) {
  HF_RETURN_IF_ERROR(WritePeerMessage(socket, MakePeerMessage(PeerMessageType::kWelcome)));
  HF_ASSIGN_OR_RETURN(const auto transport,
                      transports_->Make(hello, /*rank=*/1, socket, /*progress=*/nullptr));
  bool told = false;
  while (true) {
    while (!socket->WaitReadable(kLookUp)) {
      if (stopping_) return absl::OkStatus();
      HF_RETURN_IF_ERROR(PassRevocationOn(socket, hello, &told));
    }
    HF_RETURN_IF_ERROR(PassRevocationOn(socket, hello, &told));
    HF_ASSIGN_OR_RETURN(const bool more, socket->HasMore());
    if (!more) return absl::OkStatus();  // The peer is done with the lease.
    HF_ASSIGN_OR_RETURN(const PeerMessage message, ReadPeerMessage(socket));
    HF_RETURN_IF_ERROR(Handle(socket, transport.get(), hello, message, lease.memory.get()));
  }
}

void FarServer::TakeRevocations() {
  std::string lease_id;
  while (leases_->TakeRevocation(&lease_id)) {
    MutexLock lock(&mutex_);
    const auto found = open_.find(lease_id);
    if (found != open_.end()) ++found->second.asked_back;
  }
}

absl::Status FarServer::PassRevocationOn(TcpSocket* socket, const PeerHello& hello, bool* told) {
  int asked_back = 0;
  {
    MutexLock lock(&mutex_);
    asked_back = open_.at(hello.lease).asked_back;
  }
  if (asked_back > 1) {
    return absl::UnavailableError(
        absl::StrCat("lease ", hello.lease, " was asked back and not returned in time"));
  }
  if (asked_back == 0 || *told || hello.lane != static_cast<uint16_t>(PeerLane::kPuts)) {
    return absl::OkStatus();
  }
  *told = true;
  return WritePeerMessage(socket, MakePeerMessage(PeerMessageType::kRevoked));
}

absl::Status FarServer::Handle(TcpSocket* socket, Transport* transport, const PeerHello& hello,
                               const PeerMessage& message, Memory* memory) {
  HF_RETURN_IF_ERROR(CheckRange(message, hello));
  const bool is_puts = hello.lane == static_cast<uint16_t>(PeerLane::kPuts);
  const auto type = static_cast<PeerMessageType>(message.type);
  if (is_puts && type == PeerMessageType::kPut) {
    HF_RETURN_IF_ERROR(transport->Receive(memory->data() + message.slot, message.bytes));
  } else if (is_puts && type == PeerMessageType::kFill) {
    HF_RETURN_IF_ERROR(Fill(message, memory));
  } else if (!is_puts && type == PeerMessageType::kFetch) {
    HF_RETURN_IF_ERROR(WritePeerMessage(
        socket, MakePeerMessage(PeerMessageType::kFetched, message.sequence, 0, message.bytes)));
    return transport->Send(memory->data() + message.slot, message.bytes);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("message ", message.type, " on the lane for ", is_puts ? "puts" : "fetches"));
  }
  return WritePeerMessage(socket, MakePeerMessage(PeerMessageType::kStored, message.sequence));
}

absl::Status FarServer::Fill(const PeerMessage& message, Memory* memory) {
  HF_RETURN_IF_ERROR(fills_->Fill(memory->data() + message.slot, static_cast<uint8_t>(message.fill),
                                  message.bytes));
  fills_->Record()->Synchronize();
  return absl::OkStatus();
}

absl::StatusOr<FarServer::Lease*> FarServer::Acquire(const PeerHello& hello) {
  MutexLock lock(&mutex_);
  const auto found = open_.find(hello.lease);
  if (found != open_.end()) {
    if (!TokensEqual(found->second.token, hello.token)) {
      return absl::PermissionDeniedError(
          absl::StrCat("the token is not lease ", hello.lease, "'s"));
    }
    ++found->second.users;
    return &found->second;
  }
  Lease opened;
  opened.token = hello.token;
  HF_ASSIGN_OR_RETURN(opened.memory, leases_->Open(hello.lease, hello.token));
  opened.users = 1;
  if (opened.memory->bytes() < hello.bytes) {
    return absl::FailedPreconditionError(absl::StrCat("lease ", hello.lease, " has ",
                                                      opened.memory->bytes(), " bytes, and ",
                                                      hello.bytes, " were planned with"));
  }
  return &open_.emplace(hello.lease, std::move(opened)).first->second;
}

void FarServer::Release(const std::string& lease_id) {
  MutexLock lock(&mutex_);
  const auto found = open_.find(lease_id);
  if (found == open_.end() || --found->second.users > 0) return;
  open_.erase(found);  // Unmapped before the agent may have the bytes back.
  leases_->Return(lease_id);
}

int FarServer::peers() const {
  MutexLock lock(&mutex_);
  int peers = 0;
  for (const auto& [id, lease] : open_) peers += lease.users;
  return peers;
}

}  // namespace hyperframes
