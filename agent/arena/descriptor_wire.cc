#include "agent/arena/descriptor_wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

namespace hyperframes {
namespace {

// A sender may attach more than one descriptor; all of them must be taken to be closed.
constexpr int kMostDescriptors = 8;

bool IsText(const char* text, size_t capacity) {
  const char* end = static_cast<const char*>(memchr(text, 0, capacity));
  if (end == nullptr) return false;
  return std::all_of(text, end, [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
}

std::vector<UniqueFd> TakeDescriptors(msghdr* header) {
  std::vector<UniqueFd> taken;
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      memcpy(&descriptor, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      taken.emplace_back(descriptor);
    }
  }
  return taken;
}

WireError Check(const WireMessage& message) {
  if (message.magic != kWireMagic) return WireError::kBadMagic;
  if (message.version != kWireVersion) return WireError::kBadVersion;
  if (message.type < static_cast<uint16_t>(WireType::kHello) ||
      message.type > static_cast<uint16_t>(WireType::kTransfer)) {
    return WireError::kUnknownType;
  }
  if (!IsText(message.id, sizeof(message.id)) || !IsText(message.token, sizeof(message.token)) ||
      !IsText(message.text, sizeof(message.text))) {
    return WireError::kBadString;
  }
  return WireError::kNone;
}

}  // namespace

void SetWireText(const std::string& from, char* to, size_t capacity) {
  memset(to, 0, capacity);
  const size_t length = std::min(from.size(), capacity - 1);
  for (size_t i = 0; i < length; ++i) {
    // A status may quote anything, and the other end refuses control characters.
    const unsigned char c = from[i];
    to[i] = c >= 0x20 && c != 0x7f ? from[i] : '?';
  }
}

ReceiveResult ReceiveWire(int socket, Received* received, WireError* error) {
  received->message = WireMessage();
  received->descriptor.reset();
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  iovec buffer = {&received->message, sizeof(WireMessage)};
  msghdr header = {};
  header.msg_iov = &buffer;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t length;
  do {
    length = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (length < 0 && errno == EINTR);
  if (length < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? ReceiveResult::kWouldBlock
                                                   : ReceiveResult::kClosed;
  }
  std::vector<UniqueFd> descriptors = TakeDescriptors(&header);
  if (length == 0) return ReceiveResult::kClosed;
  *error = WireError::kNone;
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    *error = WireError::kOversized;
  } else if (length != static_cast<ssize_t>(sizeof(WireMessage))) {
    *error = WireError::kTruncated;
  } else if ((header.msg_flags & MSG_CTRUNC) != 0 || descriptors.size() > 1) {
    *error = WireError::kBadDescriptors;
  } else {
    *error = Check(received->message);
  }
  if (*error != WireError::kNone) return ReceiveResult::kMalformed;
  if (!descriptors.empty()) received->descriptor = std::move(descriptors.front());
  return ReceiveResult::kMessage;
}

absl::Status SendWire(int socket, const WireMessage& message, int descriptor) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec buffer = {const_cast<WireMessage*>(&message), sizeof(WireMessage)};
  msghdr header = {};
  header.msg_iov = &buffer;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
  }
  ssize_t length;
  do {
    length = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (length < 0 && errno == EINTR);
  if (length == static_cast<ssize_t>(sizeof(WireMessage))) return absl::OkStatus();
  return absl::UnavailableError(
      std::string("the other end of the descriptor channel takes no message: ") + strerror(errno));
}

absl::Status WireErrorStatus(WireError error) {
  switch (error) {
    case WireError::kNone:
      return absl::OkStatus();
    case WireError::kTruncated:
      return absl::InvalidArgumentError("truncated message: every packet has 512 bytes");
    case WireError::kOversized:
      return absl::InvalidArgumentError("oversized message: every packet has 512 bytes");
    case WireError::kBadMagic:
      return absl::InvalidArgumentError("not a HyperFrames descriptor message: wrong magic");
    case WireError::kBadVersion:
      return absl::FailedPreconditionError(
          "another version of the descriptor channel (this end speaks 1): install the same "
          "HyperFrames release for agent and worker");
    case WireError::kUnknownType:
      return absl::UnimplementedError("unknown message type on the descriptor channel");
    case WireError::kBadString:
      return absl::InvalidArgumentError("a string is not terminated or holds control characters");
    case WireError::kBadDescriptors:
      return absl::InvalidArgumentError("more descriptors than one message may carry");
    case WireError::kNoHello:
      return absl::FailedPreconditionError("the first message of a connection must be hello");
    case WireError::kTooManyConnections:
      return absl::ResourceExhaustedError("the agent's descriptor channel is full: try again");
    case WireError::kForeignUser:
      return absl::PermissionDeniedError(
          "another user's process: run the worker as the agent's user");
  }
  return absl::InternalError("unknown wire error");
}

WireMessage MakeReply(const WireMessage& request, const absl::Status& status, WireError error) {
  WireMessage reply;
  reply.type = static_cast<uint16_t>(WireType::kReply);
  reply.sequence = request.sequence;
  reply.code = static_cast<uint16_t>(status.code());
  reply.error = static_cast<uint16_t>(error);
  SetWireText(std::string(status.message()), reply.text, sizeof(reply.text));
  return reply;
}

absl::Status ReplyStatus(const WireMessage& reply) {
  const auto code = static_cast<absl::StatusCode>(reply.code);
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  if (reply.code > 16) return absl::InternalError("the agent answered with an unknown code");
  return absl::Status(code, reply.text);
}

bool IsWireId(const std::string& id) {
  if (id.empty() || id.size() > 127 || id[0] == '.') return false;
  return std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  });
}

}  // namespace hyperframes
