// What two hftransfer processes say to each other on a control connection: a hello with the lease's
// token, its answer, and then announcements of fixed size. Nothing from the other side is believed
// before it has been checked here.
#ifndef HYPERFRAMES_AGENT_TRANSFER_PEER_WIRE_H_
#define HYPERFRAMES_AGENT_TRANSFER_PEER_WIRE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/transfer/tcp/tcp_socket.h"
#include "common/units.h"

namespace hyperframes {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integers travel as little-endian ones");

constexpr uint32_t kPeerMagic = 0x48465031;
constexpr uint16_t kPeerVersion = 1;

// A connection carries one direction of one lease, so that reloads never queue behind copy-outs.
enum class PeerLane : uint16_t { kPuts = 1, kFetches = 2 };
enum class PeerTransport : uint16_t { kTcp = 1, kNccl = 2 };

struct PeerHello {
  uint32_t magic = kPeerMagic;
  uint16_t version = kPeerVersion;
  uint16_t lane = 0;
  uint16_t transport = 0;
  uint16_t reserved[3] = {};
  int64_t bytes = 0;                // Of the lease, as the near side was told.
  char lease[128] = {};             // Zero-terminated, as the next one.
  char token[40] = {};              // 32 hex digits. Secret.
  unsigned char nccl_id[128] = {};  // The communicator's, with kNccl.
};
static_assert(sizeof(PeerHello) == 320, "the layout is the protocol");

enum class PeerMessageType : uint16_t {
  kWelcome = 1,  // Far: the answer to a hello.
  kPut = 2,      // Near: `bytes` for `slot` follow on the transport.
  kFill = 3,     // Near: `bytes` at `slot` become `fill`.
  kStored = 4,   // Far: everything up to `sequence` is in its slots.
  kFetch = 5,    // Near: wants `bytes` at `slot`.
  kFetched = 6,  // Far: the bytes of `sequence` follow on the transport.
  kRefused = 7,  // Far: code and text; the connection ends.
  kRevoked = 8,  // Far, on the lane for puts: the lease is asked back.
};

struct PeerMessage {
  uint32_t magic = kPeerMagic;
  uint16_t type = 0;
  uint16_t code = 0;  // absl::StatusCode of kRefused.
  uint32_t sequence = 0;
  uint32_t fill = 0;
  int64_t slot = 0;
  int64_t bytes = 0;
  char text[224] = {};  // Of kRefused: zero-terminated, printable.
};
static_assert(sizeof(PeerMessage) == 256, "the layout is the protocol");

// A hello for `lease`, whose id and token fit (InvalidArgument otherwise).
absl::StatusOr<PeerHello> MakeHello(const std::string& lease_id, const std::string& token,
                                    PeerLane lane, PeerTransport transport, Bytes bytes);
// InvalidArgument, FailedPrecondition (another version): says what is wrong with it.
absl::Status CheckHello(const PeerHello& hello);

PeerMessage MakePeerMessage(PeerMessageType type, uint32_t sequence = 0, Bytes slot = 0,
                            Bytes bytes = 0);
PeerMessage MakeRefusal(const absl::Status& why);

// Reads one message. The far side's refusal comes back as its own status, with `peer` named;
// DataLoss: no message of ours; else as TcpSocket::Read.
absl::StatusOr<PeerMessage> ReadPeerMessage(TcpSocket* socket);
absl::Status WritePeerMessage(TcpSocket* socket, const PeerMessage& message);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_PEER_WIRE_H_
