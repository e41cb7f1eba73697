#include "agent/device/host/host_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/device/host/host_event.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<HostDevice> Device(Bytes total, double slowdown = 1) {
  HostDeviceOptions options;
  options.uuid = "SIM-test-0";
  options.total_bytes = total;
  options.compute_slowdown = slowdown;
  return HostDevice::Create(options).value();
}

TEST(HostDevice, DescribesItself) {
  const auto device = Device(kMiB);
  EXPECT_EQ(device->description().uuid, "SIM-test-0");
  EXPECT_EQ(device->description().name, "SIM-test-0");
  EXPECT_EQ(device->description().backend, "host");
  EXPECT_EQ(device->description().total_bytes, kMiB);
}

TEST(HostDevice, GivesZeroedMemoryThatIsNeverRecycled) {
  const auto device = Device(kMiB);
  for (int i = 0; i < 3; ++i) {
    const auto memory = device->Allocate(64 * kKiB).value();
    for (Bytes at = 0; at < memory->bytes(); at += 511) ASSERT_EQ(memory->data()[at], 0);
    memset(memory->data(), 0xFF, memory->bytes());
  }
}

TEST(HostDevice, KeepsToItsMemoryLimitAndSaysWhatWasFree) {
  const auto device = Device(kMiB);
  auto first = device->Allocate(768 * kKiB).value();
  EXPECT_EQ(device->free_bytes(), 256 * kKiB);
  const auto refused = device->Allocate(512 * kKiB);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("SIM-test-0"), HasSubstr("524288"), HasSubstr("262144")));
  first.reset();
  EXPECT_EQ(device->free_bytes(), kMiB);
  EXPECT_TRUE(device->Allocate(kMiB).ok());
}

TEST(HostDevice, RefusesAllocationsOfNothing) {
  const auto device = Device(kMiB);
  EXPECT_EQ(device->Allocate(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device->Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Device(0)->Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(HostDevice, LetsMemoryOutliveIt) {
  auto device = Device(kMiB);
  const auto memory = device->Allocate(4096).value();
  device.reset();
  memory->data()[4095] = 'x';
  EXPECT_EQ(memory->data()[4095], 'x');
}

TEST(HostDevice, MapsTheSameBytesThroughADescriptor) {
  const auto lender = Device(kMiB);
  const auto borrower = Device(0);
  auto lent = lender->Allocate(8192).value();
  const auto mapped = borrower->Map(fcntl(lent->descriptor(), F_DUPFD_CLOEXEC, 0), 8192).value();
  mapped->data()[5000] = 'm';
  EXPECT_EQ(lent->data()[5000], 'm');
  lent.reset();  // The mapping keeps the memory alive.
  EXPECT_EQ(mapped->data()[5000], 'm');
  EXPECT_EQ(borrower->free_bytes(), 0) << "mappings are not counted";
}

TEST(HostDevice, RefusesToMapAnotherSizeAndClosesTheDescriptor) {
  const auto device = Device(kMiB);
  const auto lent = device->Allocate(8192).value();
  for (const Bytes wrong : {Bytes{4096}, Bytes{8193}, Bytes{0}, Bytes{-8192}}) {
    const int descriptor = fcntl(lent->descriptor(), F_DUPFD_CLOEXEC, 0);
    const auto mapped = device->Map(descriptor, wrong);
    EXPECT_EQ(mapped.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(mapped.status().message()), HasSubstr("8192"));
    EXPECT_EQ(fcntl(descriptor, F_GETFD), -1) << "descriptor leaked";
  }
}

TEST(HostDevice, RefusesToMapWhatItsOwnerCouldTruncate) {
  const auto device = Device(kMiB);
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 4096), 0);
  const auto mapped = device->Map(unsealed, 4096);
  EXPECT_EQ(mapped.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(mapped.status().message()), HasSubstr("sealed"));
  EXPECT_EQ(device->Map(-1, 4096).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostDevice, SealsItsMemoryAndClosesItOnExec) {
  const auto memory = Device(kMiB)->Allocate(4096).value();
  EXPECT_NE(ftruncate(memory->descriptor(), 100), 0);
  EXPECT_NE(ftruncate(memory->descriptor(), 100000), 0);
  EXPECT_EQ(fcntl(memory->descriptor(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(HostDevice, DoesNotPassItsMappingsToForkedChildren) {
  const auto memory = Device(kMiB)->Allocate(4096).value();
  const pid_t child = fork();
  if (child == 0) {
    // msync fails with ENOMEM where nothing is mapped.
    _exit(msync(memory->data(), 4096, MS_ASYNC) != 0 && errno == ENOMEM ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(HostDevice, MakesTheCallerWaitForTheEvent) {
  const auto device = Device(kMiB);
  HostEvent event;
  std::atomic<bool> set{false};
  std::thread setter([&] {
    set = true;
    event.Set();
  });
  EXPECT_TRUE(device->ComputeWait(nullptr, event).ok());
  EXPECT_TRUE(set);
  setter.join();
}

TEST(HostDevice, RecordsComputeAsDoneBecauseTheProgramIsTheCaller) {
  EXPECT_TRUE(Device(kMiB)->RecordCompute(nullptr).value()->Done());
}

TEST(HostDevice, GivesEachTierThePathOfItsOwnSpeed) {
  HostDeviceOptions options;
  options.uuid = "SIM-test-0";
  options.host_bandwidth = 1000000;
  const auto device = HostDevice::Create(options).value();
  char from[20000] = {};
  char to[20000];
  const auto seconds = [&](Tier tier) {
    const auto stream = device->CreateStream(Direction::kOut, tier).value();
    EXPECT_TRUE(stream->Copy(to, from, sizeof(to)).ok());
    stream->Record()->Synchronize();
    return stream->copy_busy();
  };
  EXPECT_GE(seconds(Tier::kHost), absl::Milliseconds(18));
  EXPECT_LT(seconds(Tier::kPeer), absl::Milliseconds(18));
  EXPECT_EQ(device->CreateStream(Direction::kOut, Tier::kKeep).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(HostDevice, ComputesAsMuchSlowerAsItIsTold) {
  const auto cpu_time = [] {
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return absl::DurationFromTimespec(used);
  };
  const auto device = Device(kMiB, /*slowdown=*/3);
  ASSERT_TRUE(device->RecordCompute(nullptr).ok());
  const absl::Duration cpu_before = cpu_time();
  while (cpu_time() - cpu_before < absl::Milliseconds(20)) {
  }
  const absl::Time started = MonotonicClock()->Now();
  ASSERT_TRUE(device->RecordCompute(nullptr).ok());
  EXPECT_GE(MonotonicClock()->Now() - started, absl::Milliseconds(39));
}

TEST(HostDevice, ComputesSlowerBesideItsOwnCopies) {
  HostDeviceOptions options;
  options.uuid = "SIM-x";
  options.total_bytes = kMiB;
  options.host_bandwidth = 4 * kMiB;  // A copy of 1 MiB takes a quarter of a second.
  options.copy_slowdown = 1;
  const auto device = HostDevice::Create(options).value();
  const auto cpu_time = [] {
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return absl::DurationFromTimespec(used);
  };
  const auto lane = device->CreateStream(Direction::kOut, Tier::kHost).value();
  std::vector<char> from(kMiB), to(kMiB);
  ASSERT_TRUE(device->RecordCompute(nullptr).ok());
  const absl::Duration cpu_before = cpu_time();
  while (cpu_time() - cpu_before < absl::Milliseconds(20)) {
  }
  ASSERT_TRUE(lane->Copy(to.data(), from.data(), kMiB).ok());
  lane->Record()->Synchronize();
  const absl::Time started = MonotonicClock()->Now();
  ASSERT_TRUE(device->RecordCompute(nullptr).ok());
  EXPECT_GE(MonotonicClock()->Now() - started, absl::Milliseconds(20));
}

TEST(HostDevice, RefusesOptionsThatMakeNoSenseByName) {
  const auto message = [](auto change) {
    HostDeviceOptions options;
    options.uuid = "SIM-x";
    change(&options);
    const auto device = HostDevice::Create(options);
    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(device.status().message());
  };
  EXPECT_THAT(message([](auto* o) { o->uuid.clear(); }), HasSubstr("uuid"));
  EXPECT_THAT(message([](auto* o) { o->total_bytes = -1; }), HasSubstr("total_bytes is -1"));
  EXPECT_THAT(message([](auto* o) { o->peer_bandwidth = -1; }), HasSubstr("peer bandwidth"));
  EXPECT_THAT(message([](auto* o) { o->host_bandwidth = -1; }), HasSubstr("host bandwidth"));
  EXPECT_THAT(message([](auto* o) { o->latency = absl::Seconds(-1); }), HasSubstr("latency"));
  EXPECT_THAT(message([](auto* o) { o->compute_slowdown = 0.5; }), HasSubstr("slowdown is 0.5"));
  EXPECT_THAT(message([](auto* o) { o->copy_slowdown = 1.5; }),
              HasSubstr("copy slowdown is 1.5; it must be from 0 to 1"));
}

}  // namespace
}  // namespace hyperframes
