// Room: agent/device/nccl. NCCL, opened at run time: nothing here is linked, and no header of it is
// needed to build. One table of the functions that this project uses, and one place that turns
// their codes into sentences. It must not know leases, transfers or who asks.
#ifndef HYPERFRAMES_AGENT_DEVICE_NCCL_NCCL_LIBRARY_H_
#define HYPERFRAMES_AGENT_DEVICE_NCCL_NCCL_LIBRARY_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hyperframes {

// nccl.h's values, which its library keeps for all of version 2.
using NcclResult = int;
constexpr NcclResult kNcclSuccess = 0;
constexpr NcclResult kNcclRemoteError = 6;
constexpr NcclResult kNcclInProgress = 7;
constexpr int kNcclBytes = 0;    // ncclInt8.
constexpr int kNcclFloat32 = 7;  // ncclFloat32.
constexpr int kNcclSum = 0;      // ncclSum.
struct NcclComm;                 // ncclComm_t is a pointer to it.
struct NcclStream;               // cudaStream_t, a pointer too.

struct NcclId {  // ncclUniqueId
  char internal[128];
};

// ncclConfig_t as of 2.14; later libraries take the fields that it lacks as not set.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;  // Non-blocking: only such a communicator can be aborted at any time.
};

// Immutable once opened; thread-safe as NCCL is.
struct NcclLibrary {
  NcclResult (*get_version)(int* version) = nullptr;
  NcclResult (*get_unique_id)(NcclId* id) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm** comm, int ranks, NcclId id, int rank,
                                      NcclConfig* config) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm* comm, NcclResult* error) = nullptr;
  NcclResult (*comm_abort)(NcclComm* comm) = nullptr;
  NcclResult (*send)(const void* from, size_t count, int type, int peer, NcclComm* comm,
                     NcclStream* stream) = nullptr;
  NcclResult (*recv)(void* to, size_t count, int type, int peer, NcclComm* comm,
                     NcclStream* stream) = nullptr;
  NcclResult (*all_reduce)(const void* from, void* to, size_t count, int type, int operation,
                           NcclComm* comm, NcclStream* stream) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  const char* (*get_error_string)(NcclResult result) = nullptr;
  const char* (*get_last_error)(NcclComm* comm) = nullptr;

  // Opens the first that loads of: `path` (unless empty), HYPERFRAMES_NCCL_LIBRARY, libnccl.so.2 by
  // the loader's own search, libnccl.so.2 in `folder` (unless empty). Multicast over NVLink is
  // switched off for this process, whatever its environment says. NotFound names what was tried;
  // FailedPrecondition: a library that lacks a function.
  static absl::StatusOr<std::unique_ptr<NcclLibrary>> Open(const std::string& path,
                                                           const std::string& folder);

  // OK for success; Unavailable where the peer has gone, else Internal; names `call` and what NCCL
  // says of `comm` (may be null).
  absl::Status Check(NcclResult result, const char* call, NcclComm* comm) const;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_NCCL_NCCL_LIBRARY_H_
