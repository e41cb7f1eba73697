// Frames between two nodes, each with a real hftransfer: bytes, tokens, and what happens when one
// of the processes stops or dies (docs/cases.md C7, C22).
#include <limits>

#include "agent/engine/frame_engine.h"
#include "agent/transfer/peer_wire.h"
#include "agent/transfer/transfer_fixture.h"

namespace hyperframes {
namespace {

std::vector<char> Pattern(Bytes bytes, int seed) {
  std::vector<char> data(static_cast<size_t>(bytes));
  uint32_t state = 2463534242u + static_cast<uint32_t>(seed);
  for (char& c : data) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    c = static_cast<char>(state);
  }
  return data;
}

// An engine whose only arena is the lease on node b.
std::unique_ptr<FrameEngine> EngineOn(Device* device, std::unique_ptr<Memory> memory) {
  EngineArena arena;
  arena.lease_id = "lease-1";
  arena.tier = Tier::kPeer;
  arena.gpu = "SIM-b-0";
  arena.memory = std::move(memory);
  std::vector<EngineArena> arenas;
  arenas.push_back(std::move(arena));
  FrameEngineOptions options;
  options.stash_limit = 4 * kMiB;
  return FrameEngine::Create(device, std::move(arenas), options).value();
}

StorageHandle Put(FrameEngine* engine, const std::vector<char>& data, int ordinal) {
  StorageKey key;
  key.ordinal = ordinal;
  auto placed = engine->Put(key, data.data(), static_cast<Bytes>(data.size()), Tier::kPeer,
                            "SIM-b-0", -1, nullptr);
  EXPECT_TRUE(placed.ok()) << placed.status();
  return placed.ok() ? placed->handle : 0;
}

absl::Status FetchAndWait(FrameEngine* engine, StorageHandle handle, std::vector<char>* back) {
  absl::Status status = engine->Fetch(handle, back->data(), false, nullptr);
  return status.ok() ? engine->Wait(handle, nullptr) : status;
}

TEST_F(TransferTest, FramesOfEverySizeComeBackAsTheyWere) {
  StartFar();
  StartNear();
  auto engine = EngineOn(device_.get(), OpenLease());
  std::vector<std::vector<char>> frames;
  std::vector<StorageHandle> handles;
  // From a byte to many pieces of the staging memory, which has 128 KiB for each.
  for (const Bytes bytes :
       {Bytes{1}, Bytes{511}, Bytes{4096}, 128 * kKiB, 128 * kKiB + 1, 3 * kMiB, 5 * kMiB + 77}) {
    frames.push_back(Pattern(bytes, static_cast<int>(frames.size())));
    handles.push_back(Put(engine.get(), frames.back(), static_cast<int>(frames.size())));
  }
  for (size_t i = frames.size(); i-- > 0;) {
    std::vector<char> back(frames[i].size());
    ASSERT_TRUE(FetchAndWait(engine.get(), handles[i], &back).ok());
    EXPECT_TRUE(back == frames[i]) << "frame of " << back.size() << " bytes";
    engine->Drop(handles[i]);
  }
  EXPECT_TRUE(engine->Quiesce().ok());
}

TEST_F(TransferTest, CreditsOfOnePieceAreEnough) {
  StartFar();
  StartNear("20s", absl::Seconds(40), /*credit=*/"1KiB");
  auto engine = EngineOn(device_.get(), OpenLease());
  const std::vector<char> frame = Pattern(3 * kMiB, 1);
  const StorageHandle handle = Put(engine.get(), frame, 1);
  std::vector<char> back(frame.size());
  ASSERT_TRUE(FetchAndWait(engine.get(), handle, &back).ok());
  EXPECT_TRUE(back == frame);
}

TEST_F(TransferTest, ASimulatedNetworkIsNoFasterThanItIsSaidToBe) {
  StartFar();
  StartNear("20s", absl::Seconds(40), "64MiB", /*bandwidth=*/"20MB");
  auto engine = EngineOn(device_.get(), OpenLease());
  const std::vector<char> frame = Pattern(3 * kMiB, 1);
  const absl::Time begin = MonotonicClock()->Now();
  const StorageHandle handle = Put(engine.get(), frame, 1);
  std::vector<char> back(frame.size());
  ASSERT_TRUE(FetchAndWait(engine.get(), handle, &back).ok());
  EXPECT_TRUE(back == frame);
  EXPECT_GE(MonotonicClock()->Now() - begin, absl::Milliseconds(2 * 3000 / 20));
}

TEST_F(TransferTest, AFetchMayBeRepeated) {
  StartFar();
  StartNear();
  auto engine = EngineOn(device_.get(), OpenLease());
  const std::vector<char> frame = Pattern(300000, 1);
  const StorageHandle handle = Put(engine.get(), frame, 1);
  for (int i = 0; i < 3; ++i) {
    std::vector<char> back(frame.size());
    ASSERT_TRUE(FetchAndWait(engine.get(), handle, &back).ok());
    EXPECT_TRUE(back == frame);
  }
}

TEST_F(TransferTest, LeasesGoBackToTheirAgentWithTheMemory) {
  StartFar();
  StartNear();
  auto first = OpenLease("lease-1");
  auto second = OpenLease("lease-2");
  EXPECT_EQ(agent_->lent(), 2 * kLeaseBytes);
  first.reset();
  EXPECT_TRUE(Eventually([&] { return agent_->lent() == kLeaseBytes; }));
  second.reset();
  EXPECT_TRUE(Eventually([&] { return agent_->lent() == 0; }));
  EXPECT_EQ(agent_->device->free_bytes(), kGiB);
}

TEST_F(TransferTest, ATrainingProcessThatIsGoneLeavesNothingBehind) {
  StartFar();
  StartNear();
  const auto memory = OpenLease();
  EXPECT_EQ(agent_->lent(), kLeaseBytes);
  ASSERT_EQ(shutdown(worker_socket_.get(), SHUT_RDWR), 0);
  EXPECT_EQ(near_->WaitForExit(), 0);
  EXPECT_TRUE(Eventually([&] { return agent_->lent() == 0; }));
}

// C22.
TEST_F(TransferTest, AWrongTokenOpensNothing) {
  StartFar();
  StartNear();
  agent_->Lend("lease-1", kLeaseBytes);
  const auto refused =
      channel_->Open(device_.get(), Lease("lease-1", "00000000000000000000000000000000"));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied) << refused.status();
  const auto unknown =
      channel_->Open(device_.get(), Lease("lease-9", "00000000000000000000000000000000"));
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound) << unknown.status();
}

TEST_F(TransferTest, AnOpenLeaseIsClosedToAnotherToken) {
  StartFar();
  StartNear();
  auto memory = OpenLease();
  const auto hello = MakeHello("lease-1", "00000000000000000000000000000000", PeerLane::kFetches,
                               PeerTransport::kTcp, kLeaseBytes)
                         .value();
  auto socket = TcpSocket::Connect(ParseHostPort(address_).value(), absl::Seconds(20)).value();
  ASSERT_TRUE(socket->Write(&hello, sizeof(hello)).ok());
  EXPECT_EQ(ReadPeerMessage(socket.get()).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(TransferTest, APeerReachesNothingOutsideItsLease) {
  StartFar();
  struct Reach {
    Bytes slot;
    Bytes bytes;
  };
  const int64_t most = std::numeric_limits<int64_t>::max();
  int number = 0;
  for (const Reach& reach : {Reach{kLeaseBytes, 1}, Reach{-1, 1}, Reach{0, kLeaseBytes + 1},
                             Reach{1, most}, Reach{most, most}, Reach{0, 0}, Reach{0, -5}}) {
    const std::string id = "lease-" + std::to_string(number++);
    const auto hello = MakeHello(id, agent_->Lend(id, kLeaseBytes), PeerLane::kFetches,
                                 PeerTransport::kTcp, kLeaseBytes)
                           .value();
    auto socket = TcpSocket::Connect(ParseHostPort(address_).value(), absl::Seconds(20)).value();
    ASSERT_TRUE(socket->Write(&hello, sizeof(hello)).ok());
    ASSERT_TRUE(ReadPeerMessage(socket.get()).ok());
    const PeerMessage fetch = MakePeerMessage(PeerMessageType::kFetch, 1, reach.slot, reach.bytes);
    ASSERT_TRUE(WritePeerMessage(socket.get(), fetch).ok());
    EXPECT_EQ(ReadPeerMessage(socket.get()).status().code(), absl::StatusCode::kOutOfRange)
        << reach.bytes << " at " << reach.slot;
  }
}

TEST_F(TransferTest, WhatIsNoHelloIsRefused) {
  StartFar();
  auto socket = TcpSocket::Connect(ParseHostPort(address_).value(), absl::Seconds(20)).value();
  const std::vector<char> noise = Pattern(sizeof(PeerHello), 5);
  ASSERT_TRUE(socket->Write(noise.data(), static_cast<Bytes>(noise.size())).ok());
  EXPECT_EQ(ReadPeerMessage(socket.get()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TransferTest, OtherMachinesAreRefusedWithoutTls) {
  StartNear();
  RemoteLease lease = Lease("lease-1", agent_->Lend("lease-1", kLeaseBytes));
  lease.address = "10.0.0.7:4000";
  const auto refused = channel_->Open(device_.get(), lease);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
}

// Puts frames until one of them is lost, and expects the reason to name the node.
void ExpectLoss(FrameEngine* engine, const std::string& named) {
  const std::vector<char> frame = Pattern(2 * kMiB, 3);
  absl::Status status;
  for (int i = 0; i < 3 && status.ok(); ++i) {
    StorageKey key;
    key.block = 4;
    key.ordinal = i;
    const auto placed = engine->Put(key, frame.data(), static_cast<Bytes>(frame.size()),
                                    Tier::kPeer, "SIM-b-0", -1, nullptr);
    status = placed.status();
    if (!placed.ok()) break;
    std::vector<char> back(frame.size());
    status = FetchAndWait(engine, placed->handle, &back);
    EXPECT_FALSE(status.ok() && back != frame) << "wrong bytes passed for right ones";
  }
  engine->TakeReleasable(/*limit=*/0, nullptr);  // Only now may the frame go.
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(std::string(status.message()).find(named), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("on node b"), std::string::npos) << status;
}

// C7.
TEST_F(TransferTest, APeerThatStopsReadingInTheMiddleOfAFrameIsNamedWithinTheDeadline) {
  StartFar();
  StartNear(/*deadline=*/"300ms");
  auto engine = EngineOn(device_.get(), OpenLease());
  const std::vector<char> kept = Pattern(1000, 1);
  const StorageHandle handle = Put(engine.get(), kept, 1);
  std::vector<char> back(kept.size());
  ASSERT_TRUE(FetchAndWait(engine.get(), handle, &back).ok());
  // Stopped, not dead: its sockets stay open, and take what fits into their buffers.
  far_->Signal(SIGSTOP);
  const std::vector<char> frame = Pattern(12 * kMiB, 2);
  StorageKey key;
  key.block = 4;
  const auto placed = engine->Put(key, frame.data(), static_cast<Bytes>(frame.size()), Tier::kPeer,
                                  "SIM-b-0", -1, nullptr);
  absl::Status status = placed.status();
  if (placed.ok()) {
    std::vector<char> reloaded(frame.size());
    status = FetchAndWait(engine.get(), placed->handle, &reloaded);
    EXPECT_NE(std::string(status.message()).find("block 4"), std::string::npos) << status;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(std::string(status.message()).find("node b"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("does not answer"), std::string::npos) << status;
  // Every later use says the same at once, and nothing hangs, not even the end.
  EXPECT_EQ(FetchAndWait(engine.get(), handle, &back).code(), absl::StatusCode::kUnavailable);
  engine.reset();
  far_->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return agent_->lent() == 0; }));
}

TEST_F(TransferTest, APeerThatStopsIsNamedInAReload) {
  StartFar();
  StartNear(/*deadline=*/"300ms");
  auto engine = EngineOn(device_.get(), OpenLease());
  const std::vector<char> frame = Pattern(3 * kMiB, 1);
  const StorageHandle handle = Put(engine.get(), frame, 1);
  std::vector<char> back(frame.size());
  ASSERT_TRUE(FetchAndWait(engine.get(), handle, &back).ok());
  far_->Signal(SIGSTOP);
  const absl::Status status = FetchAndWait(engine.get(), handle, &back);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(std::string(status.message()).find("storage 1"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("node b"), std::string::npos) << status;
}

TEST_F(TransferTest, AKilledPeerIsNoticedAtOnce) {
  StartFar();
  StartNear();  // A deadline of 20 s, which nobody waits for.
  auto engine = EngineOn(device_.get(), OpenLease());
  const std::vector<char> frame = Pattern(kMiB, 1);
  Put(engine.get(), frame, 1);
  far_->Signal(SIGKILL);
  const absl::Time started = MonotonicClock()->Now();
  ExpectLoss(engine.get(), "hftransfer");
  EXPECT_LT(MonotonicClock()->Now() - started, absl::Seconds(15));
  EXPECT_TRUE(Eventually([&] { return agent_->lent() == 0; }));
}

TEST_F(TransferTest, AKilledHftransferOfThisNodeIsNoticedAtOnce) {
  StartFar();
  StartNear();
  auto engine = EngineOn(device_.get(), OpenLease());
  near_->Signal(SIGKILL);
  const absl::Time started = MonotonicClock()->Now();
  ExpectLoss(engine.get(), "hftransfer of this node has ended");
  EXPECT_LT(MonotonicClock()->Now() - started, absl::Seconds(15));
  engine.reset();
  EXPECT_TRUE(Eventually([&] { return agent_->lent() == 0; })) << "the far lease is free again";
  EXPECT_EQ(device_->free_bytes(), kGiB) << "and so is this node's staging memory";
}

TEST_F(TransferTest, AStoppedHftransferOfThisNodeIsGivenUpAtItsDeadline) {
  StartFar();
  StartNear("20s", /*channel_deadline=*/absl::Milliseconds(500));
  auto engine = EngineOn(device_.get(), OpenLease());
  near_->Signal(SIGSTOP);
  ExpectLoss(engine.get(), "no sign of life");
  // It goes on where it was, and sets words back: nobody may wait for them again.
  near_->Signal(SIGCONT);
  engine.reset();
  EXPECT_TRUE(Eventually([&] { return agent_->lent() == 0; }));
}

TEST_F(TransferTest, OneLostLeaseLeavesTheOthersAlone) {
  StartFar();
  StartNear();
  auto engine = EngineOn(device_.get(), OpenLease("lease-1"));
  auto other = EngineOn(device_.get(), OpenLease("lease-2"));
  const std::vector<char> frame = Pattern(kMiB, 1);
  const StorageHandle handle = Put(other.get(), frame, 1);
  engine.reset();
  std::vector<char> back(frame.size());
  ASSERT_TRUE(FetchAndWait(other.get(), handle, &back).ok());
  EXPECT_TRUE(back == frame);
}

TEST_F(TransferTest, TheFarSideOutlivesItsAgentForAsLongAsItHasPeers) {
  StartFar();
  StartNear();
  auto engine = EngineOn(device_.get(), OpenLease());
  const std::vector<char> frame = Pattern(kMiB, 1);
  const StorageHandle handle = Put(engine.get(), frame, 1);
  lifeline_.reset();
  agent_.reset();
  std::vector<char> back(frame.size());
  ASSERT_TRUE(FetchAndWait(engine.get(), handle, &back).ok());
  EXPECT_TRUE(back == frame);
  engine.reset();
  EXPECT_EQ(far_->WaitForExit(), 0);
}

TEST_F(TransferTest, HftransferEndsWithItsTrainingProcess) {
  StartNear();
  channel_.reset();
  EXPECT_EQ(near_->WaitForExit(), 0);
}

}  // namespace
}  // namespace hyperframes
