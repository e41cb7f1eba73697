// hftransfer's end of the socket that it shares with one training process: opens and closes leases
// of other nodes for it, and tells it when one is lost. Ends with the socket: the training process
// is gone then, or needs no other node any more.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TRANSFER_HOST_H_
#define HYPERFRAMES_AGENT_TRANSFER_TRANSFER_HOST_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/arena/descriptor_wire.h"
#include "agent/device/device.h"
#include "agent/transfer/credits.h"
#include "agent/transfer/near_session.h"
#include "agent/transfer/traffic_meter.h"
#include "agent/transfer/transport_maker.h"
#include "common/unique_fd.h"

namespace hyperframes {

struct TransferHostOptions {
  absl::Duration deadline = absl::Seconds(10);  // See NearSessionOptions.
  Bytes credit = 256 * kMiB;                    // Under way to or from one peer at a time.
  size_t most_leases = 64;
  TrafficMeter::Sink on_traffic;  // May be null: nothing is measured.
};

// One thread.
class TransferHost {
 public:
  // `device` maps staging memory; it and `transports` outlive the host.
  TransferHost(TransferHostOptions options, UniqueFd socket, Device* device,
               TransportMaker* transports);
  ~TransferHost();

  // Serves until the training process has closed its end: OK. InvalidArgument: it sent what is no
  // message.
  absl::Status Run();

 private:
  struct Lease {
    std::unique_ptr<Memory> page;
    std::unique_ptr<Memory> staging;
    std::unique_ptr<NearSession> session;
  };

  absl::Status Handle(Received received);
  absl::Status Open(const WireMessage& request);
  absl::StatusOr<Lease*> Find(const std::string& lease_id);
  std::shared_ptr<Credits> CreditsFor(const HostPort& address);
  std::shared_ptr<TrafficMeter> MeterFor(const std::string& node);

  const TransferHostOptions options_;
  const UniqueFd socket_;
  UniqueFd process_;  // The training process, once it has said which one it is.
  Device* const device_;
  TransportMaker* const transports_;
  std::map<std::string, std::weak_ptr<Credits>> credits_;      // By the peer's address.
  std::map<std::string, std::weak_ptr<TrafficMeter>> meters_;  // By the peer's node.
  std::map<std::string, Lease> leases_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TRANSFER_HOST_H_
