#include "agent/transfer/peer_wire.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr uint16_t kLargestCode = 16;

// Copies what fits, with control characters replaced: it goes into somebody's log.
void SetText(const std::string& from, char* to, size_t capacity) {
  std::memset(to, 0, capacity);
  for (size_t i = 0; i < std::min(from.size(), capacity - 1); ++i) {
    const unsigned char c = static_cast<unsigned char>(from[i]);
    to[i] = c >= 0x20 && c != 0x7f ? from[i] : '?';
  }
}

bool IsText(const char* text, size_t capacity) {
  const char* const end = static_cast<const char*>(std::memchr(text, 0, capacity));
  return end != nullptr &&
         std::all_of(text, end, [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
}

}  // namespace

absl::StatusOr<PeerHello> MakeHello(const std::string& lease_id, const std::string& token,
                                    PeerLane lane, PeerTransport transport, Bytes bytes) {
  PeerHello hello;
  if (lease_id.empty() || lease_id.size() >= sizeof(hello.lease) || token.empty() ||
      token.size() >= sizeof(hello.token)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "lease '", lease_id.substr(0, 64), "' has an id or a token of no legal length; take both ",
        "from the plan's grant"));
  }
  hello.lane = static_cast<uint16_t>(lane);
  hello.transport = static_cast<uint16_t>(transport);
  hello.bytes = bytes;
  SetText(lease_id, hello.lease, sizeof(hello.lease));
  SetText(token, hello.token, sizeof(hello.token));
  return hello;
}

absl::Status CheckHello(const PeerHello& hello) {
  if (hello.magic != kPeerMagic) {
    return absl::InvalidArgumentError("not a hello of hftransfer: something else connects here");
  }
  if (hello.version != kPeerVersion) {
    return absl::FailedPreconditionError(absl::StrCat("this hftransfer speaks version ",
                                                      kPeerVersion, " and its peer ", hello.version,
                                                      ": install the same release on both nodes"));
  }
  if (hello.lane < 1 || hello.lane > 2 || hello.transport < 1 || hello.transport > 2 ||
      hello.bytes <= 0 || !IsText(hello.lease, sizeof(hello.lease)) ||
      !IsText(hello.token, sizeof(hello.token))) {
    return absl::InvalidArgumentError("a hello with impossible values");
  }
  return absl::OkStatus();
}

PeerMessage MakePeerMessage(PeerMessageType type, uint32_t sequence, Bytes slot, Bytes bytes) {
  PeerMessage message;
  message.type = static_cast<uint16_t>(type);
  message.sequence = sequence;
  message.slot = slot;
  message.bytes = bytes;
  return message;
}

PeerMessage MakeRefusal(const absl::Status& why) {
  PeerMessage message = MakePeerMessage(PeerMessageType::kRefused);
  message.code = static_cast<uint16_t>(why.code());
  SetText(std::string(why.message()), message.text, sizeof(message.text));
  return message;
}

absl::StatusOr<PeerMessage> ReadPeerMessage(TcpSocket* socket) {
  PeerMessage message;
  HF_RETURN_IF_ERROR(socket->Read(&message, sizeof(message)));
  if (message.magic != kPeerMagic ||
      message.type < static_cast<uint16_t>(PeerMessageType::kWelcome) ||
      message.type > static_cast<uint16_t>(PeerMessageType::kRevoked) ||
      !IsText(message.text, sizeof(message.text))) {
    return absl::DataLossError(
        absl::StrCat("hftransfer at ", socket->peer(), " sends what is no message"));
  }
  if (message.type == static_cast<uint16_t>(PeerMessageType::kRefused)) {
    const bool legal = message.code > 0 && message.code <= kLargestCode;
    return absl::Status(
        legal ? static_cast<absl::StatusCode>(message.code) : absl::StatusCode::kInternal,
        absl::StrCat("hftransfer at ", socket->peer(), " refuses: ", message.text));
  }
  return message;
}

absl::Status WritePeerMessage(TcpSocket* socket, const PeerMessage& message) {
  return socket->Write(&message, sizeof(message));
}

}  // namespace hyperframes
