// The training process's end of the socket that it shares with its hftransfer: opens leases on
// other nodes as memory with lanes of its own, and watches over them.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TRANSFER_CHANNEL_H_
#define HYPERFRAMES_AGENT_TRANSFER_TRANSFER_CHANNEL_H_

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/arena/descriptor_wire.h"
#include "agent/device/device.h"
#include "agent/transfer/remote_link.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace hyperframes {

struct RemoteLease {
  std::string lease_id;
  std::string token;
  std::string node;     // Of the lender.
  std::string address;  // Of hftransfer there: "127.0.0.1:40123".
  Bytes bytes = 0;
  // On this process's device, half for each direction: frames pass through it in pieces of at most
  // an eighth of it, and of 16 MiB.
  Bytes staging_bytes = 128 * kMiB;
};

// Thread-safe. Outlived by nothing that it opened: the memories keep it.
class TransferChannel : public std::enable_shared_from_this<TransferChannel> {
 public:
  // `socket` is a SOCK_SEQPACKET end whose other end hftransfer holds. `deadline`: how long
  // hftransfer may show no sign of life once a lease is open.
  static std::shared_ptr<TransferChannel> Adopt(UniqueFd socket,
                                                absl::Duration deadline = absl::Seconds(15));
  ~TransferChannel();

  // Memory of exactly the lease's bytes, reached by lanes of its own (Memory::CreateStream) for
  // `device`, which outlives it. Unavailable: hftransfer, or the far node's, cannot be reached;
  // NotFound, PermissionDenied: that node's word on the lease. Returned to its agent when the
  // memory is destroyed.
  absl::StatusOr<std::unique_ptr<Memory>> Open(Device* device, const RemoteLease& lease)
      HF_EXCLUDES(mutex_);

  // True, with its id, when the other node asks for an open lease back; once for each. Never
  // blocks.
  bool TakeRevocation(std::string* lease_id) HF_EXCLUDES(mutex_);

 private:
  friend class RemoteMemory;
  struct Pending {
    bool answered = false;
    absl::Status status;
  };

  TransferChannel(UniqueFd socket, absl::Duration deadline);
  absl::Status Call(WireMessage request, int descriptor) HF_EXCLUDES(mutex_);
  void Close(const std::string& lease_id) HF_EXCLUDES(mutex_);
  void Run();
  // False: the socket has ended.
  bool ReceiveOne() HF_EXCLUDES(mutex_);
  void Lost(const std::string& lease_id, const std::string& why) HF_EXCLUDES(mutex_);
  void End(const std::string& why) HF_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<RemoteLink>> Links() const HF_EXCLUDES(mutex_);

  const UniqueFd socket_;
  const absl::Duration deadline_;
  std::atomic<bool> closing_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t next_sequence_ HF_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Pending> pending_ HF_GUARDED_BY(mutex_);
  std::map<std::string, std::weak_ptr<RemoteLink>> links_ HF_GUARDED_BY(mutex_);
  std::set<std::string> revoked_ HF_GUARDED_BY(mutex_);  // Not taken yet.
  absl::Status ended_ HF_GUARDED_BY(mutex_);             // Not OK once hftransfer has gone.
  std::thread thread_;  // Last: starts when everything above is ready.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TRANSFER_CHANNEL_H_
