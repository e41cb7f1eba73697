// The near side of hftransfer for one lease: takes the training process's commands from the page
// that they share, and carries them out with the far side. Copy-outs and reloads have a thread and
// a connection each; a third thread hears what was stored, and keeps the page's beat.
#ifndef HYPERFRAMES_AGENT_TRANSFER_NEAR_SESSION_H_
#define HYPERFRAMES_AGENT_TRANSFER_NEAR_SESSION_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/device.h"
#include "agent/transfer/command_ring.h"
#include "agent/transfer/credits.h"
#include "agent/transfer/peer_wire.h"
#include "agent/transfer/tcp/tcp_socket.h"
#include "agent/transfer/traffic_meter.h"
#include "agent/transfer/transfer_page.h"
#include "agent/transfer/transport_maker.h"
#include "common/mutex.h"

namespace hyperframes {

struct NearSessionOptions {
  std::string lease_id;
  std::string token;
  std::string node;  // Of the far side, for messages.
  HostPort address;
  Bytes lease_bytes = 0;
  // How long a peer may let a piece wait: without a byte on TCP, for the whole piece on NCCL, and
  // for the word that it was stored.
  absl::Duration deadline = absl::Seconds(10);
  std::function<void()> on_revoked;  // Told, by a thread of the session, when it is asked back.
  WordWriter words = WordWriter::kPosts;  // kSilent: the training process's words come from a GPU.
  std::shared_ptr<TrafficMeter> meter;    // Of the far side's node; null: nothing is measured.
};

// Thread-safe.
class NearSession {
 public:
  // Connects and shows the token. `page` is the shared page; `staging` is memory of the training
  // process, usable here. `on_failed` is told once, by a thread of the session, when nothing more
  // will move; the page says so by then. Unavailable: the peer cannot be reached; else the far
  // side's refusal: NotFound, PermissionDenied.
  static absl::StatusOr<std::unique_ptr<NearSession>> Open(
      NearSessionOptions options, std::unique_ptr<Memory> page, std::unique_ptr<Memory> staging,
      std::shared_ptr<Credits> credits, TransportMaker* transports,
      std::function<void(const absl::Status&)> on_failed);
  ~NearSession();  // Gives up what is under way and closes the connections.

 private:
  struct Lane {
    std::unique_ptr<TcpSocket> socket;
    std::unique_ptr<Transport> transport;
  };

  NearSession(NearSessionOptions options, std::unique_ptr<Memory> page,
              std::unique_ptr<Memory> staging, std::shared_ptr<Credits> credits,
              std::function<void(const absl::Status&)> on_failed);
  absl::Status Connect(PeerLane lane, TransportMaker* transports, Lane* out);
  absl::Status CheckCommand(const TransferCommand& command, bool of_puts) const;
  bool Over() const { return over_.load(std::memory_order_acquire); }
  void Fail(const absl::Status& why) HF_EXCLUDES(mutex_);
  void Progress() HF_EXCLUDES(mutex_);

  absl::Status RunPuts();
  absl::Status Put(const TransferCommand& command);
  absl::Status RunStored();
  absl::Status RunFetches();
  struct Requested {
    TransferCommand command;
    Crossing crossing;
  };
  bool MayRequest(const TransferCommand& command) const;
  absl::Status Request(const TransferCommand& command);
  absl::Status ReceiveFetched(Requested* requested);

  const NearSessionOptions options_;
  const std::unique_ptr<Memory> page_memory_;
  const std::unique_ptr<Memory> staging_;
  const std::shared_ptr<Credits> credits_;
  const std::function<void(const absl::Status&)> on_failed_;
  TransferPage* const page_;
  CommandConsumer put_commands_;
  CommandConsumer fetch_commands_;
  Lane puts_;
  Lane fetches_;
  std::atomic<bool> over_{false};
  mutable Mutex mutex_;
  bool told_ HF_GUARDED_BY(mutex_) = false;
  // Puts whose far side has not said that they are stored, in order.
  struct Unstored {
    uint32_t sequence;
    Bytes bytes;
    Crossing crossing;  // Empty for a fill.
  };
  std::deque<Unstored> unstored_ HF_GUARDED_BY(mutex_);
  absl::Time last_progress_ HF_GUARDED_BY(mutex_);
  Bytes fetching_ = 0;  // Of the fetching thread.
  std::thread put_thread_;
  std::thread stored_thread_;
  std::thread fetch_thread_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_NEAR_SESSION_H_
