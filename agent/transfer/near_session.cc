#include "agent/transfer/near_session.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kBeat = absl::Milliseconds(100);
// Reloads asked for ahead of the one that is coming, so that the far side never waits for a word.
constexpr size_t kMostRequested = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<NearSession>> NearSession::Open(
    NearSessionOptions options, std::unique_ptr<Memory> page, std::unique_ptr<Memory> staging,
    std::shared_ptr<Credits> credits, TransportMaker* transports,
    std::function<void(const absl::Status&)> on_failed) {
  const auto* const shared = reinterpret_cast<const TransferPage*>(page->data());
  if (page->bytes() != kTransferPageBytes || shared->magic != kTransferMagic ||
      shared->version != kTransferVersion) {
    return absl::FailedPreconditionError(
        "the training process shares a page of another layout: install the same release for the "
        "agent and the training program");
  }
  std::unique_ptr<NearSession> session(new NearSession(std::move(options), std::move(page),
                                                       std::move(staging), std::move(credits),
                                                       std::move(on_failed)));
  // One connection after the other: the far side opens the lease with the first.
  HF_RETURN_IF_ERROR(session->Connect(PeerLane::kPuts, transports, &session->puts_));
  HF_RETURN_IF_ERROR(session->Connect(PeerLane::kFetches, transports, &session->fetches_));
  const auto run = [raw = session.get()](absl::Status (NearSession::*lane)()) {
    return std::thread([raw, lane] {
      const absl::Status ended = (raw->*lane)();
      if (!ended.ok()) raw->Fail(ended);
    });
  };
  session->put_thread_ = run(&NearSession::RunPuts);
  session->stored_thread_ = run(&NearSession::RunStored);
  session->fetch_thread_ = run(&NearSession::RunFetches);
  return session;
}

NearSession::NearSession(NearSessionOptions options, std::unique_ptr<Memory> page,
                         std::unique_ptr<Memory> staging, std::shared_ptr<Credits> credits,
                         std::function<void(const absl::Status&)> on_failed)
    : options_(std::move(options)),
      page_memory_(std::move(page)),
      staging_(std::move(staging)),
      credits_(std::move(credits)),
      on_failed_(std::move(on_failed)),
      page_(reinterpret_cast<TransferPage*>(page_memory_->data())),
      put_commands_(&page_->puts, page_->generation),
      fetch_commands_(&page_->fetches, page_->generation) {}

NearSession::~NearSession() {
  {
    MutexLock lock(&mutex_);
    told_ = true;  // Nobody is interested any more.
  }
  Fail(absl::CancelledError("closed"));
  for (std::thread* thread : {&put_thread_, &stored_thread_, &fetch_thread_}) {
    if (thread->joinable()) thread->join();
  }
  MutexLock lock(&mutex_);
  Bytes under_way = fetching_;
  for (const Unstored& put : unstored_) under_way += put.bytes;
  if (under_way > 0) credits_->GiveBack(under_way);
}

absl::Status NearSession::Connect(PeerLane lane, TransportMaker* transports, Lane* out) {
  HF_ASSIGN_OR_RETURN(out->socket, TcpSocket::Connect(options_.address, options_.deadline));
  HF_ASSIGN_OR_RETURN(PeerHello hello, MakeHello(options_.lease_id, options_.token, lane,
                                                 transports->kind(), options_.lease_bytes));
  HF_RETURN_IF_ERROR(transports->PrepareHello(&hello));
  HF_RETURN_IF_ERROR(out->socket->Write(&hello, sizeof(hello)));
  HF_ASSIGN_OR_RETURN(const PeerMessage answer, ReadPeerMessage(out->socket.get()));
  if (answer.type != static_cast<uint16_t>(PeerMessageType::kWelcome)) {
    return absl::DataLossError(absl::StrCat("hftransfer of node ", options_.node,
                                            " answers a hello with message ", answer.type));
  }
  HF_ASSIGN_OR_RETURN(out->transport, transports->Make(hello, /*rank=*/0, out->socket.get(),
                                                       [this] { Progress(); }));
  return absl::OkStatus();
}

void NearSession::Progress() {
  MutexLock lock(&mutex_);
  last_progress_ = MonotonicClock()->Now();
}

void NearSession::Fail(const absl::Status& why) {
  bool tells = false;
  {
    MutexLock lock(&mutex_);
    tells = !told_;
    told_ = true;
  }
  over_.store(true, std::memory_order_release);
  // In parallel: ending a communicator may take as long as its peer is silent.
  std::vector<std::thread> ends;
  for (Lane* lane : {&puts_, &fetches_}) {
    if (lane->transport != nullptr) {
      ends.emplace_back([transport = lane->transport.get()] { transport->Abort(); });
    }
    if (lane->socket != nullptr) lane->socket->Abort();
  }
  for (std::thread& end : ends) end.join();
  // First the reason, then the word: whoever sees the word finds the reason already there.
  if (tells) {
    on_failed_(absl::UnavailableError(absl::StrCat("node ", options_.node, ": ", why.message())));
  }
  PostWord(&page_->failed, 1);
}

absl::Status NearSession::CheckCommand(const TransferCommand& command, bool of_puts) const {
  const auto op = static_cast<TransferOp>(command.op);
  const bool known =
      of_puts ? op == TransferOp::kPut || op == TransferOp::kFill : op == TransferOp::kFetch;
  const auto within = [&command](Bytes offset, Bytes size) {
    return offset >= 0 && command.bytes > 0 && command.bytes <= size &&
           offset <= size - command.bytes;
  };
  if (known && within(command.slot, options_.lease_bytes) &&
      (op == TransferOp::kFill || within(command.staging, staging_->bytes()))) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("command ", command.sequence, " (operation ", command.op,
                                          ", ", command.bytes, " bytes at ", command.slot,
                                          ") lies outside lease ", options_.lease_id));
}

absl::Status NearSession::RunPuts() {
  const auto over = [this] { return Over(); };
  while (true) {
    TransferCommand command;
    HF_ASSIGN_OR_RETURN(const bool taken, put_commands_.Take(&command, over));
    if (!taken) return absl::OkStatus();
    HF_RETURN_IF_ERROR(CheckCommand(command, /*of_puts=*/true));
    // Reloads from the slot come first, then the bytes must have arrived in staging.
    if (command.after != 0 && !AwaitWord(page_->fetch_done, command.after, over)) break;
    const bool has_bytes = command.op == static_cast<uint16_t>(TransferOp::kPut);
    if (has_bytes && !AwaitWord(page_->put_ready, command.sequence, over, options_.words)) break;
    if (!credits_->Take(command.bytes, over)) break;
    {
      MutexLock lock(&mutex_);
      // Nobody was waiting for the peer before now.
      if (unstored_.empty()) last_progress_ = MonotonicClock()->Now();
      unstored_.push_back({command.sequence, command.bytes,
                           has_bytes ? Crossing(options_.meter, Direction::kOut) : Crossing()});
    }
    HF_RETURN_IF_ERROR(Put(command));
    PostWord(&page_->put_sent, command.sequence);
  }
  return absl::OkStatus();
}

absl::Status NearSession::Put(const TransferCommand& command) {
  const bool has_bytes = command.op == static_cast<uint16_t>(TransferOp::kPut);
  PeerMessage message = MakePeerMessage(has_bytes ? PeerMessageType::kPut : PeerMessageType::kFill,
                                        command.sequence, command.slot, command.bytes);
  message.fill = command.fill;
  HF_RETURN_IF_ERROR(WritePeerMessage(puts_.socket.get(), message));
  if (!has_bytes) return absl::OkStatus();
  // Stored may be heard before this end is through with it.
  Crossing sending(options_.meter, Direction::kOut);
  HF_RETURN_IF_ERROR(puts_.transport->Send(staging_->data() + command.staging, command.bytes));
  sending.Arrived(0);
  return absl::OkStatus();
}

absl::Status NearSession::RunStored() {
  uint32_t beat = 0;
  while (!Over()) {
    PostWord(&page_->beat, ++beat);
    if (!puts_.socket->WaitReadable(kBeat)) {
      MutexLock lock(&mutex_);
      const absl::Duration quiet = MonotonicClock()->Now() - last_progress_;
      if (unstored_.empty() || quiet < options_.deadline) continue;
      return absl::UnavailableError(
          absl::StrCat("hftransfer at ", puts_.socket->peer(), " does not answer: piece ",
                       unstored_.front().sequence, " of lease ", options_.lease_id,
                       " was not stored within ", absl::FormatDuration(options_.deadline)));
    }
    HF_ASSIGN_OR_RETURN(const PeerMessage message, ReadPeerMessage(puts_.socket.get()));
    if (message.type == static_cast<uint16_t>(PeerMessageType::kRevoked)) {
      if (options_.on_revoked) options_.on_revoked();
      continue;
    }
    Bytes stored = 0;
    Crossing crossing;
    {
      MutexLock lock(&mutex_);
      last_progress_ = MonotonicClock()->Now();
      if (message.type != static_cast<uint16_t>(PeerMessageType::kStored) || unstored_.empty() ||
          unstored_.front().sequence != message.sequence) {
        return absl::DataLossError(absl::StrCat("hftransfer at ", puts_.socket->peer(),
                                                " answers piece ", message.sequence,
                                                ", which was not sent"));
      }
      stored = unstored_.front().bytes;
      crossing = std::move(unstored_.front().crossing);
      unstored_.pop_front();
    }
    crossing.Arrived(stored);
    credits_->GiveBack(stored);
    PostWord(&page_->put_stored, message.sequence);
  }
  return absl::OkStatus();
}

bool NearSession::MayRequest(const TransferCommand& command) const {
  const auto reached = [](const SharedWord& word, uint32_t number) {
    return number == 0 || Reached(word.load(std::memory_order_acquire), number);
  };
  return reached(page_->put_stored, command.after) &&
         reached(page_->fetch_taken, command.staging_after);
}

absl::Status NearSession::Request(const TransferCommand& command) {
  return WritePeerMessage(
      fetches_.socket.get(),
      MakePeerMessage(PeerMessageType::kFetch, command.sequence, command.slot, command.bytes));
}

absl::Status NearSession::ReceiveFetched(Requested* requested) {
  const TransferCommand& command = requested->command;
  HF_ASSIGN_OR_RETURN(const PeerMessage message, ReadPeerMessage(fetches_.socket.get()));
  if (message.type != static_cast<uint16_t>(PeerMessageType::kFetched) ||
      message.sequence != command.sequence || message.bytes != command.bytes) {
    return absl::DataLossError(absl::StrCat(
        "hftransfer at ", fetches_.socket->peer(), " sends piece ", message.sequence, " of ",
        message.bytes, " bytes for piece ", command.sequence, " of ", command.bytes));
  }
  HF_RETURN_IF_ERROR(
      fetches_.transport->Receive(staging_->data() + command.staging, command.bytes));
  requested->crossing.Arrived(command.bytes);
  fetching_ -= command.bytes;
  credits_->GiveBack(command.bytes);
  PostWord(&page_->fetch_done, command.sequence);
  return absl::OkStatus();
}

absl::Status NearSession::RunFetches() {
  const auto over = [this] { return Over(); };
  std::deque<Requested> requested;
  TransferCommand next;
  bool has_next = false;
  while (!Over()) {
    if (!has_next && requested.size() < kMostRequested) {
      HF_ASSIGN_OR_RETURN(has_next, requested.empty() ? fetch_commands_.Take(&next, over)
                                                      : fetch_commands_.TryTake(&next));
      if (has_next) HF_RETURN_IF_ERROR(CheckCommand(next, /*of_puts=*/false));
    }
    // What waits for a word must not keep a reload waiting that is on its way already.
    if (has_next && !requested.empty() && !MayRequest(next)) {
      HF_RETURN_IF_ERROR(ReceiveFetched(&requested.front()));
      requested.pop_front();
      continue;
    }
    if (has_next) {
      if (next.after != 0 && !AwaitWord(page_->put_stored, next.after, over)) break;
      if (next.staging_after != 0 &&
          !AwaitWord(page_->fetch_taken, next.staging_after, over, options_.words)) {
        break;
      }
      // Credits that only our own reloads could give back must not be waited for.
      const auto gives_up = [&] { return Over() || !requested.empty(); };
      if (credits_->Take(next.bytes, gives_up)) {
        fetching_ += next.bytes;
        requested.push_back({next, Crossing(options_.meter, Direction::kIn)});
        HF_RETURN_IF_ERROR(Request(next));
        has_next = false;
        continue;
      }
    }
    if (requested.empty()) continue;
    HF_RETURN_IF_ERROR(ReceiveFetched(&requested.front()));
    requested.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace hyperframes
