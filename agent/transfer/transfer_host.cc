#include "agent/transfer/transfer_host.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/device/host/host_memory.h"
#include "common/clock.h"
#include "common/listen_address.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

template <typename Value>
void ForgetExpired(std::map<std::string, std::weak_ptr<Value>>* values) {
  for (auto it = values->begin(); it != values->end();) {
    it = it->second.expired() ? values->erase(it) : ++it;
  }
}

}  // namespace

TransferHost::TransferHost(TransferHostOptions options, UniqueFd socket, Device* device,
                           TransportMaker* transports)
    : options_(std::move(options)),
      socket_(std::move(socket)),
      device_(device),
      transports_(transports) {}

TransferHost::~TransferHost() = default;

absl::Status TransferHost::Run() {
  while (true) {
    // A data loader that it has forked may hold the socket open after its death.
    pollfd watched[] = {{socket_.get(), POLLIN, 0}, {process_.get(), POLLIN, 0}};
    if (poll(watched, 2, /*timeout=*/-1) < 0 && errno != EINTR) {
      return absl::InternalError("poll of the training process's socket failed");
    }
    if (watched[1].revents != 0) return absl::OkStatus();
    Received received;
    WireError error = WireError::kNone;
    switch (ReceiveWire(socket_.get(), &received, &error)) {
      case ReceiveResult::kWouldBlock:
        continue;
      case ReceiveResult::kClosed:
        return absl::OkStatus();
      case ReceiveResult::kMalformed:
        return WireErrorStatus(error);
      case ReceiveResult::kMessage:
        break;
    }
    const WireMessage request = received.message;
    const absl::Status status = Handle(std::move(received));
    if (!SendWire(socket_.get(), MakeReply(request, status)).ok()) return absl::OkStatus();
  }
}

absl::Status TransferHost::Handle(Received received) {
  const WireMessage& message = received.message;
  const std::string lease_id = message.id;
  switch (static_cast<WireType>(message.type)) {
    case WireType::kPage: {
      if (!IsWireId(lease_id) || leases_.size() >= options_.most_leases ||
          leases_.count(lease_id) > 0) {
        return absl::FailedPreconditionError(absl::StrCat(
            "lease '", lease_id.substr(0, 64), "' is open already, or no id, or one of more than ",
            options_.most_leases, " leases of other nodes"));
      }
      // Read and written by the processor alone, on every backend.
      HF_ASSIGN_OR_RETURN(std::unique_ptr<Memory> page,
                          HostMemory::Map(received.descriptor.release(), message.bytes));
      leases_[lease_id].page = std::move(page);
      process_.reset(static_cast<int>(syscall(SYS_pidfd_open, message.reserved, 0)));
      return absl::OkStatus();
    }
    case WireType::kStaging: {
      HF_ASSIGN_OR_RETURN(Lease * lease, Find(lease_id));
      if (lease->session != nullptr) {
        return absl::FailedPreconditionError("the lease's staging is in use");
      }
      HF_ASSIGN_OR_RETURN(lease->staging,
                          device_->Map(received.descriptor.release(), message.bytes));
      return absl::OkStatus();
    }
    case WireType::kOpenRemote: {
      absl::Status opened = Open(message);
      if (!opened.ok()) leases_.erase(lease_id);
      return opened;
    }
    case WireType::kReturn:
      leases_.erase(lease_id);
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(
          absl::StrCat("hftransfer does not take messages of type ", message.type));
  }
}

absl::StatusOr<TransferHost::Lease*> TransferHost::Find(const std::string& lease_id) {
  const auto found = leases_.find(lease_id);
  if (found != leases_.end()) return &found->second;
  return absl::FailedPreconditionError(
      absl::StrCat("lease '", lease_id.substr(0, 64), "' has no page yet: that comes first"));
}

absl::Status TransferHost::Open(const WireMessage& request) {
  HF_ASSIGN_OR_RETURN(Lease * lease, Find(request.id));
  if (lease->page == nullptr || lease->staging == nullptr) {
    return absl::FailedPreconditionError("a lease is opened once it has a page and staging memory");
  }
  const std::string where = request.text;
  const size_t bar = where.rfind('|');
  if (bar == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", where, "' is no node|address"));
  }
  NearSessionOptions options;
  options.lease_id = request.id;
  options.token = request.token;
  options.node = where.substr(0, bar);
  HF_ASSIGN_OR_RETURN(options.address, ParseHostPort(where.substr(bar + 1)));
  options.lease_bytes = request.bytes;
  options.deadline = options_.deadline;
  options.meter = MeterFor(options.node);
  options.words =
      device_->description().backend == "host" ? WordWriter::kPosts : WordWriter::kSilent;
  const auto lost = [this, id = options.lease_id](const absl::Status& why) {
    LOG(WARNING) << "lease " << id << " is lost: " << why.message();
    WireMessage message;
    message.type = static_cast<uint16_t>(WireType::kLost);
    SetWireText(id, message.id, sizeof(message.id));
    message.code = static_cast<uint16_t>(why.code());
    SetWireText(std::string(why.message()), message.text, sizeof(message.text));
    // One that does not read sees the page's word, if later.
    SendWire(socket_.get(), message).IgnoreError();
  };
  options.on_revoked = [this, id = options.lease_id] {
    WireMessage message;
    message.type = static_cast<uint16_t>(WireType::kRevoke);
    SetWireText(id, message.id, sizeof(message.id));
    SendWire(socket_.get(), message).IgnoreError();  // One that is gone returns it anyway.
  };
  const std::shared_ptr<Credits> credits = CreditsFor(options.address);
  const std::string node = options.node;
  auto session = NearSession::Open(std::move(options), std::move(lease->page),
                                   std::move(lease->staging), credits, transports_, lost);
  if (!session.ok()) {
    return absl::Status(session.status().code(),
                        absl::StrCat("node ", node, ": ", session.status().message()));
  }
  lease->session = *std::move(session);
  return absl::OkStatus();
}

std::shared_ptr<TrafficMeter> TransferHost::MeterFor(const std::string& node) {
  if (!options_.on_traffic || !IsNodeName(node)) return nullptr;
  ForgetExpired(&meters_);
  std::weak_ptr<TrafficMeter>& known = meters_[node];
  std::shared_ptr<TrafficMeter> meter = known.lock();
  if (meter == nullptr) {
    meter = std::make_shared<TrafficMeter>(node, MonotonicClock(), options_.on_traffic);
    known = meter;
  }
  return meter;
}

std::shared_ptr<Credits> TransferHost::CreditsFor(const HostPort& address) {
  ForgetExpired(&credits_);
  std::weak_ptr<Credits>& known = credits_[FormatHostPort(address)];
  std::shared_ptr<Credits> credits = known.lock();
  if (credits == nullptr) {
    credits = std::make_shared<Credits>(options_.credit);
    known = credits;
  }
  return credits;
}

}  // namespace hyperframes
