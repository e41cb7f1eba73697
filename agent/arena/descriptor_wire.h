// The messages of the descriptor channel: one fixed-size record per packet of a unix SOCK_SEQPACKET
// socket, with at most one descriptor. Both ends are on one host, so integers are in host order.
// Whatever does not decode is answered with a distinct WireError and the connection is closed:
// nothing from the other side is believed before it has been checked here.
#ifndef HYPERFRAMES_AGENT_ARENA_DESCRIPTOR_WIRE_H_
#define HYPERFRAMES_AGENT_ARENA_DESCRIPTOR_WIRE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace hyperframes {

constexpr uint32_t kWireMagic = 0x48464443;  // "HFDC"
constexpr uint16_t kWireVersion = 1;

enum class WireType : uint16_t {
  kHello = 1,     // Client: id = worker, text = job; may carry the counters page. Must come first.
  kMap = 2,       // Client: id = lease, token. The reply carries the descriptor and its bytes.
  kReturn = 3,    // Client: id = lease. Unmapped and closed.
  kOffer = 4,     // Client: id = lease, token, bytes, and a descriptor kept from before.
  kReported = 5,  // Client: everything that it still holds has been offered.
  kReply = 6,     // Server: code, text, error; answers the message with the same sequence.
  kRevoke = 7,    // Server: id = lease. Please return it at the next quiescent point.

  // Between a training process and its hftransfer (agent/transfer), on a socket of their own.
  kPage = 8,         // Worker: id = lease, the page's descriptor and bytes. Then
  kStaging = 9,      // Worker: id = lease, the staging memory's descriptor and bytes. Then
  kOpenRemote = 10,  // Worker: id = lease, token, bytes, text = "node|address". The reply says.
  kLost = 11,        // hftransfer: id = lease, code, text. Nothing more will move.
  // Client of an agent: a hftransfer of its own, please. The reply carries its socket.
  kTransfer = 12,
};

// Why a packet was refused. Distinct on the wire, so that a log names the cause.
enum class WireError : uint16_t {
  kNone = 0,
  kTruncated = 1,
  kOversized = 2,
  kBadMagic = 3,
  kBadVersion = 4,
  kUnknownType = 5,
  kBadString = 6,
  kBadDescriptors = 7,
  kNoHello = 8,
  kTooManyConnections = 9,
  kForeignUser = 10,
};

struct WireMessage {
  uint32_t magic = kWireMagic;
  uint16_t version = kWireVersion;
  uint16_t type = 0;
  uint64_t sequence = 0;
  int64_t bytes = 0;
  uint16_t code = 0;   // absl::StatusCode of a reply.
  uint16_t error = 0;  // WireError of a reply.
  uint32_t reserved = 0;
  char id[128] = {};    // Zero-terminated, printable, as are the next two.
  char token[40] = {};  // 32 hex digits.
  char text[312] = {};
};
static_assert(sizeof(WireMessage) == 512, "the layout is the protocol");

// Copies, cutting what does not fit: messages are bounded.
void SetWireText(const std::string& from, char* to, size_t capacity);

struct Received {
  WireMessage message;
  UniqueFd descriptor;  // Invalid when none came.
};

enum class ReceiveResult { kMessage, kWouldBlock, kClosed, kMalformed };

// Takes one packet from `socket` without blocking. Descriptors arrive close-on-exec; those of a
// refused packet are closed. kMalformed fills `error`. `received->message.sequence` is then still
// the sender's when the packet was long enough to hold one.
ReceiveResult ReceiveWire(int socket, Received* received, WireError* error);

// Sends one packet, with a copy of `descriptor` unless it is -1, without blocking. Unavailable: the
// peer is gone, or does not read.
absl::Status SendWire(int socket, const WireMessage& message, int descriptor = -1);

// The sentence and the code for a refused packet.
absl::Status WireErrorStatus(WireError error);

// Fills a reply to `request` from `status`.
WireMessage MakeReply(const WireMessage& request, const absl::Status& status,
                      WireError error = WireError::kNone);
// The other way.
absl::Status ReplyStatus(const WireMessage& reply);

// True for 1 to 127 characters of [A-Za-z0-9._:-], not starting with a dot: safe in file names.
bool IsWireId(const std::string& id);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_DESCRIPTOR_WIRE_H_
