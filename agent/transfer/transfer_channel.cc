#include "agent/transfer/transfer_channel.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/device/borrowed_memory.h"
#include "agent/device/host/host_memory.h"
#include "agent/transfer/remote_stream.h"
#include "common/clock.h"
#include "common/frame.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);  // At the links' words.
// For an open: hftransfer may only just have been started, and its peer have two communicators to
// make.
constexpr absl::Duration kAnswer = absl::Seconds(60);
constexpr Bytes kSmallestStaging = 8 * kSlotAlignment;

WireMessage Message(WireType type, const std::string& lease_id, Bytes bytes) {
  WireMessage message;
  message.type = static_cast<uint16_t>(type);
  message.bytes = bytes;
  SetWireText(lease_id, message.id, sizeof(message.id));
  return message;
}

}  // namespace

// Addresses without memory behind them: whoever reads or writes them directly is stopped at once.
class RemoteMemory final : public Memory {
 public:
  RemoteMemory(std::shared_ptr<TransferChannel> channel, std::string lease_id,
               std::shared_ptr<RemoteLink> link, Device* device, char* range)
      : channel_(std::move(channel)),
        lease_id_(std::move(lease_id)),
        link_(std::move(link)),
        device_(device),
        range_(range) {}
  ~RemoteMemory() override {
    channel_->Close(lease_id_);
    munmap(range_, static_cast<size_t>(link_->lease_bytes()));
  }

  char* data() const override { return range_; }
  Bytes bytes() const override { return link_->lease_bytes(); }
  int descriptor() const override { return -1; }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(Direction direction) override {
    HF_ASSIGN_OR_RETURN(std::unique_ptr<Stream> local,
                        device_->CreateStream(direction, Tier::kPeer));
    return std::unique_ptr<Stream>(new RemoteStream(link_, direction, std::move(local), range_));
  }

 private:
  const std::shared_ptr<TransferChannel> channel_;
  const std::string lease_id_;
  const std::shared_ptr<RemoteLink> link_;
  Device* const device_;
  char* const range_;
};

std::shared_ptr<TransferChannel> TransferChannel::Adopt(UniqueFd socket, absl::Duration deadline) {
  return std::shared_ptr<TransferChannel>(new TransferChannel(std::move(socket), deadline));
}

TransferChannel::TransferChannel(UniqueFd socket, absl::Duration deadline)
    : socket_(std::move(socket)), deadline_(deadline), thread_([this] { Run(); }) {}

TransferChannel::~TransferChannel() {
  closing_ = true;
  shutdown(socket_.get(), SHUT_RDWR);  // Ends the thread's poll, and with it hftransfer.
  thread_.join();
}

absl::StatusOr<std::unique_ptr<Memory>> TransferChannel::Open(Device* device,
                                                              const RemoteLease& lease) {
  if (lease.bytes <= 0 || lease.staging_bytes < kSmallestStaging) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease ", lease.lease_id.substr(0, 64), " has ", lease.bytes, " bytes and ",
                     lease.staging_bytes, " of staging; give at least 1 and ", kSmallestStaging));
  }
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> fresh,
                      HostMemory::Create("transfer", kTransferPageBytes, /*budget=*/nullptr));
  const int page_descriptor = fcntl(fresh->descriptor(), F_DUPFD_CLOEXEC, 0);
  HF_ASSIGN_OR_RETURN(auto page, device->Map(page_descriptor, kTransferPageBytes));
  HF_ASSIGN_OR_RETURN(auto staging, BorrowMemory(device, device, lease.staging_bytes));
  HF_RETURN_IF_ERROR(page->WaitUntilUsable());
  const auto link =
      std::make_shared<RemoteLink>(absl::StrCat("lease ", lease.lease_id, " on node ", lease.node),
                                   lease.bytes, std::move(page), std::move(staging));
  WireMessage page_message = Message(WireType::kPage, lease.lease_id, kTransferPageBytes);
  page_message.reserved = static_cast<uint32_t>(getpid());
  HF_RETURN_IF_ERROR(Call(page_message, link->page_memory().descriptor()));
  HF_RETURN_IF_ERROR(Call(Message(WireType::kStaging, lease.lease_id, lease.staging_bytes),
                          link->staging_memory().descriptor()));
  WireMessage open = Message(WireType::kOpenRemote, lease.lease_id, lease.bytes);
  SetWireText(lease.token, open.token, sizeof(open.token));
  SetWireText(absl::StrCat(lease.node, "|", lease.address), open.text, sizeof(open.text));
  HF_RETURN_IF_ERROR(Call(open, /*descriptor=*/-1));

  void* const range = mmap(nullptr, static_cast<size_t>(lease.bytes), PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
  if (range == MAP_FAILED) {
    Close(lease.lease_id);
    return absl::InternalError(
        absl::StrCat("no addresses for ", FormatBytes(lease.bytes), ": ", std::strerror(errno)));
  }
  MutexLock lock(&mutex_);
  if (!ended_.ok()) link->Lose(std::string(ended_.message()));
  links_[lease.lease_id] = link;
  return std::unique_ptr<Memory>(new RemoteMemory(shared_from_this(), lease.lease_id, link, device,
                                                  static_cast<char*>(range)));
}

absl::Status TransferChannel::Call(WireMessage request, int descriptor) {
  MutexLock lock(&mutex_);
  HF_RETURN_IF_ERROR(ended_);
  request.sequence = next_sequence_++;
  HF_RETURN_IF_ERROR(SendWire(socket_.get(), request, descriptor));
  const auto pending = pending_.emplace(request.sequence, Pending()).first;
  const bool answered = changed_.WaitFor(&mutex_, kAnswer, [this, pending] {
    mutex_.AssertHeld();
    return pending->second.answered || !ended_.ok();
  });
  absl::Status status = pending->second.answered ? pending->second.status : ended_;
  pending_.erase(pending);
  if (!answered) {
    return absl::UnavailableError(absl::StrCat("hftransfer of this node has not answered within ",
                                               absl::FormatDuration(kAnswer)));
  }
  return status;
}

bool TransferChannel::TakeRevocation(std::string* lease_id) {
  MutexLock lock(&mutex_);
  while (!revoked_.empty()) {
    *lease_id = *revoked_.begin();
    revoked_.erase(revoked_.begin());
    if (links_.count(*lease_id) > 0) return true;  // Else it was closed meanwhile.
  }
  return false;
}

void TransferChannel::Close(const std::string& lease_id) {
  MutexLock lock(&mutex_);
  links_.erase(lease_id);
  revoked_.erase(lease_id);
  if (!ended_.ok()) return;
  // Nobody waits for the answer: hftransfer closes its connections, and the far agent has the
  // bytes.
  const absl::Status sent = SendWire(socket_.get(), Message(WireType::kReturn, lease_id, 0));
  if (!sent.ok()) LOG(WARNING) << "lease " << lease_id << ": " << sent.message();
}

void TransferChannel::Run() {
  const Clock* const clock = MonotonicClock();
  absl::Time looked = clock->Now();
  bool open = true;
  while (!closing_) {
    if (open) {
      pollfd watched = {socket_.get(), POLLIN, 0};
      poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(kLook)));
      while (open && (watched.revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
        open = ReceiveOne();
        poll(&watched, 1, 0);
      }
    } else {
      poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(kLook)));
    }
    const absl::Time now = clock->Now();
    // Bounded: a time for which this process was stopped says nothing about the other one.
    const absl::Duration since = std::min(now - looked, 2 * kLook);
    looked = now;
    for (const auto& link : Links()) link->Watch(since, deadline_);
  }
}

bool TransferChannel::ReceiveOne() {
  Received received;
  WireError error = WireError::kNone;
  switch (ReceiveWire(socket_.get(), &received, &error)) {
    case ReceiveResult::kWouldBlock:
      return true;
    case ReceiveResult::kClosed:
      End("hftransfer of this node has ended");
      return false;
    case ReceiveResult::kMalformed:
      End("hftransfer of this node sends what is no message");
      return false;
    case ReceiveResult::kMessage:
      break;
  }
  const WireMessage& message = received.message;
  if (message.type == static_cast<uint16_t>(WireType::kLost)) {
    Lost(message.id, message.text);
    return true;
  }
  MutexLock lock(&mutex_);
  if (message.type == static_cast<uint16_t>(WireType::kRevoke)) {
    revoked_.insert(message.id);
    return true;
  }
  const auto pending = pending_.find(message.sequence);
  if (message.type != static_cast<uint16_t>(WireType::kReply) || pending == pending_.end()) {
    return true;  // The answer to a Close, or one that came too late.
  }
  pending->second.answered = true;
  pending->second.status = ReplyStatus(message);
  changed_.NotifyAll();
  return true;
}

void TransferChannel::Lost(const std::string& lease_id, const std::string& why) {
  std::shared_ptr<RemoteLink> link;
  {
    MutexLock lock(&mutex_);
    const auto found = links_.find(lease_id);
    if (found != links_.end()) link = found->second.lock();
  }
  if (link != nullptr) link->Lose(why);
}

void TransferChannel::End(const std::string& why) {
  {
    MutexLock lock(&mutex_);
    ended_ = absl::UnavailableError(why);
    changed_.NotifyAll();
  }
  for (const auto& link : Links()) link->Lose(why);
}

std::vector<std::shared_ptr<RemoteLink>> TransferChannel::Links() const {
  std::vector<std::shared_ptr<RemoteLink>> links;
  MutexLock lock(&mutex_);
  for (const auto& [id, weak] : links_) {
    std::shared_ptr<RemoteLink> link = weak.lock();
    if (link != nullptr) links.push_back(std::move(link));
  }
  return links;
}

}  // namespace hyperframes
