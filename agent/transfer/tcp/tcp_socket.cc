#include "agent/transfer/tcp/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr int kBacklog = 64;

int PollTimeout(absl::Duration patience) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(patience), 0, 3600000));
}

// Above 0 when there are events, 0 after `patience`.
int Poll(int socket, int16_t events, absl::Duration patience) {
  pollfd watched = {socket, events, 0};
  int ready;
  do {
    ready = poll(&watched, 1, PollTimeout(patience));
  } while (ready < 0 && errno == EINTR);
  return ready;
}

absl::StatusOr<sockaddr_in> SocketAddress(const HostPort& address) {
  HF_RETURN_IF_ERROR(RequireLoopback(address, /*has_tls=*/false));
  sockaddr_in out = {};
  out.sin_family = AF_INET;
  out.sin_port = htons(static_cast<uint16_t>(address.port));
  const std::string host = address.host == "localhost" ? "127.0.0.1" : address.host;
  if (inet_pton(AF_INET, host.c_str(), &out.sin_addr) == 1) return out;
  return absl::InvalidArgumentError(absl::StrCat("transfer address ", FormatHostPort(address),
                                                 " is no IPv4 address; write it like 127.0.0.1:0"));
}

void Tune(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

}  // namespace

TcpSocket::TcpSocket(UniqueFd socket, std::string peer, absl::Duration deadline)
    : socket_(std::move(socket)), peer_(std::move(peer)), deadline_(deadline) {
  Tune(socket_.get());
}

absl::StatusOr<std::unique_ptr<TcpSocket>> TcpSocket::Connect(const HostPort& address,
                                                              absl::Duration deadline) {
  HF_ASSIGN_OR_RETURN(const sockaddr_in to, SocketAddress(address));
  const std::string peer = FormatHostPort(address);
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto failed = [&peer](int error) {
    return absl::UnavailableError(
        absl::StrCat("hftransfer at ", peer, " cannot be reached: ", std::strerror(error)));
  };
  if (!socket.valid()) return failed(errno);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    if (errno != EINPROGRESS) return failed(errno);
    if (Poll(socket.get(), POLLOUT, deadline) <= 0) return failed(ETIMEDOUT);
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return failed(error);
  }
  return std::make_unique<TcpSocket>(std::move(socket), peer, deadline);
}

absl::Status TcpSocket::Gone(const char* what, int error) const {
  return absl::UnavailableError(
      absl::StrCat("hftransfer at ", peer_, " is gone while ", what, ": ",
                   error == 0 ? "it closed the connection" : std::strerror(error)));
}

absl::Status TcpSocket::Stalled(const char* what) const {
  return absl::UnavailableError(absl::StrCat("hftransfer at ", peer_, " does not answer: no byte ",
                                             what, " for ", absl::FormatDuration(deadline_)));
}

absl::Status TcpSocket::Write(const void* data, Bytes bytes,
                              const std::function<void()>& progress) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket_.get(), at, static_cast<size_t>(bytes), MSG_NOSIGNAL);
    if (sent > 0) {
      at += sent;
      bytes -= sent;
      if (progress != nullptr) progress();
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
      return Gone("it was sent bytes", errno);
    if (Poll(socket_.get(), POLLOUT, deadline_) == 0) return Stalled("was taken");
  }
  return absl::OkStatus();
}

absl::Status TcpSocket::Read(void* data, Bytes bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t received = recv(socket_.get(), at, static_cast<size_t>(bytes), 0);
    if (received > 0) {
      at += received;
      bytes -= received;
      continue;
    }
    if (received < 0 && errno == EINTR) continue;
    if (received == 0) return Gone("bytes were awaited", 0);
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Gone("bytes were awaited", errno);
    if (Poll(socket_.get(), POLLIN, deadline_) == 0) return Stalled("came");
  }
  return absl::OkStatus();
}

bool TcpSocket::WaitReadable(absl::Duration patience) {
  return Poll(socket_.get(), POLLIN, patience) != 0;
}

absl::StatusOr<bool> TcpSocket::HasMore() {
  char first = 0;
  ssize_t seen;
  do {
    seen = recv(socket_.get(), &first, 1, MSG_PEEK);
  } while (seen < 0 && errno == EINTR);
  if (seen < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
    return Gone("nothing was under way", errno);
  }
  return seen != 0;
}

void TcpSocket::Abort() { shutdown(socket_.get(), SHUT_RDWR); }

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Listen(const HostPort& address) {
  HF_ASSIGN_OR_RETURN(sockaddr_in at, SocketAddress(address));
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t length = sizeof(at);
  if (!socket.valid() ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0 ||
      listen(socket.get(), kBacklog) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", FormatHostPort(address), ": ",
                                               std::strerror(errno),
                                               "; port 0 lets the kernel choose"));
  }
  HostPort chosen = address;
  chosen.port = ntohs(at.sin_port);
  return std::unique_ptr<TcpListener>(new TcpListener(std::move(socket), std::move(chosen)));
}

std::unique_ptr<TcpSocket> TcpListener::Accept(absl::Duration patience, absl::Duration deadline) {
  if (Poll(socket_.get(), POLLIN, patience) <= 0) return nullptr;
  sockaddr_in from = {};
  socklen_t length = sizeof(from);
  UniqueFd accepted(accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from), &length,
                            SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted.valid()) return nullptr;
  char host[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &from.sin_addr, host, sizeof(host));
  return std::make_unique<TcpSocket>(std::move(accepted),
                                     absl::StrCat(host, ":", ntohs(from.sin_port)), deadline);
}

}  // namespace hyperframes
