// Room: agent/transfer. Moves frames between nodes: between the engine in a training process and a
// lease on another node's device, through hftransfer, a child process that has the sockets (and on
// GPUs the NCCL communicators), so that none of that lives or dies with the training process. It
// knows devices, leases' tokens and peers; it must not know plans, gRPC or what the bytes mean.
//
//   training process           hftransfer, near            hftransfer, far        far agent
//   engine -> RemoteStream --- ring, words, staging --- NearSession ==peer== FarServer -- lease
//
// This file: the page that a training process and its hftransfer share, one for each lease. Each
// side writes its own words and believes nothing that the other one writes before checking it.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TRANSFER_PAGE_H_
#define HYPERFRAMES_AGENT_TRANSFER_TRANSFER_PAGE_H_

#include <cstdint>
#include <type_traits>

#include "common/shared_word.h"
#include "common/units.h"

namespace hyperframes {

enum class TransferOp : uint16_t {
  kPut = 1,    // From staging into a slot of the far lease.
  kFetch = 2,  // From a slot of the far lease into staging.
  kFill = 3,   // One byte value into a slot; nothing in staging.
};

struct TransferCommand {
  uint32_t generation = 0;     // The page's own: a command that was left behind does not carry it.
  uint32_t sequence = 0;       // Ascends by one within its direction.
  uint32_t after = 0;          // Of the other direction: must be over first. 0: nothing.
  uint32_t staging_after = 0;  // A fetch: fetch_taken must have reached it. 0: staging is free.
  uint16_t op = 0;
  uint16_t fill = 0;  // The byte of kFill.
  uint32_t reserved = 0;
  int64_t slot = 0;     // Offset in the lease.
  int64_t staging = 0;  // Offset in the staging memory.
  int64_t bytes = 0;
};
static_assert(sizeof(TransferCommand) == 48, "the layout is the protocol");
static_assert(std::is_trivially_copyable_v<TransferCommand>);

constexpr uint32_t kRingCapacity = 1024;  // Commands that wait, in each direction.

struct alignas(64) RingPage {
  alignas(64) SharedWord pushed;  // Written by the producer: commands so far.
  alignas(64) SharedWord taken;   // Written by the consumer.
  alignas(64) TransferCommand commands[kRingCapacity];
};

constexpr uint64_t kTransferMagic = 0x3152465358464848;
constexpr uint32_t kTransferVersion = 1;

struct TransferPage {
  uint64_t magic;
  uint32_t version;
  uint32_t generation;

  // By the training process's streams.
  alignas(64) SharedWord put_ready;    // The put's bytes are in staging.
  alignas(64) SharedWord fetch_taken;  // The fetch's bytes have left staging.

  // By hftransfer.
  alignas(64) SharedWord put_sent;    // The put's staging may be used again.
  alignas(64) SharedWord put_stored;  // The far side has the bytes in the slot.
  alignas(64) SharedWord fetch_done;  // The fetch's bytes are in staging.
  alignas(64) SharedWord beat;        // Changes several times a second while it lives.
  alignas(64) SharedWord failed;      // 1 for ever once nothing more will move.

  RingPage puts;     // Puts and fills.
  RingPage fetches;  // Fetches.
};

constexpr Bytes kTransferPageBytes = (sizeof(TransferPage) + 4095) / 4096 * 4096;

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TRANSFER_PAGE_H_
