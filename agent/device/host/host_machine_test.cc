#include "agent/device/host/host_machine.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

TEST(ParseHostDevices, ReadsTheLongForm) {
  const auto devices =
      ParseHostDevices(
          "SIM-a-0=1GiB@peer=20GB,host=10GB/s,latency=20us,slowdown=1.5; SIM-a-1=512MiB")
          .value();
  ASSERT_EQ(devices.size(), 2);
  EXPECT_EQ(devices[0].uuid, "SIM-a-0");
  EXPECT_EQ(devices[0].total_bytes, kGiB);
  EXPECT_EQ(devices[0].peer_bandwidth, 20'000'000'000);
  EXPECT_EQ(devices[0].host_bandwidth, 10'000'000'000);
  EXPECT_EQ(devices[0].latency, absl::Microseconds(20));
  EXPECT_EQ(devices[0].compute_slowdown, 1.5);
  EXPECT_EQ(devices[1].uuid, "SIM-a-1");
  EXPECT_EQ(devices[1].total_bytes, 512 * kMiB);
  EXPECT_EQ(devices[1].peer_bandwidth, 0);
}

TEST(ParseHostDevices, ReadsTheShortForms) {
  const auto pair = ParseHostDevices("2 x 1GiB").value();
  ASSERT_EQ(pair.size(), 2);
  EXPECT_EQ(pair[0].uuid, "SIM-local-0");
  EXPECT_EQ(pair[1].uuid, "SIM-local-1");
  EXPECT_EQ(pair[1].total_bytes, kGiB);

  const auto fast = ParseHostDevices("3x64MiB@peer=1GB,latency=1ms", "a").value();
  ASSERT_EQ(fast.size(), 3);
  EXPECT_EQ(fast[2].uuid, "SIM-a-2");
  EXPECT_EQ(fast[2].peer_bandwidth, 1'000'000'000);

  const auto unequal = ParseHostDevices("1GiB, 512MiB", "b").value();
  ASSERT_EQ(unequal.size(), 2);
  EXPECT_EQ(unequal[1].uuid, "SIM-b-1");
  EXPECT_EQ(unequal[1].total_bytes, 512 * kMiB);
}

TEST(ParseHostDevices, ReadsBackWhatFormatWrote) {
  const auto devices = ParseHostDevices(
                           "SIM-a-0=1000001@peer=3GB,host=7,latency=1500ns,slowdown=1.1,"
                           "copy-slowdown=0.08;"
                           "X=1@peer-promise=1GB,host-promise=2GB/s,collective-promise=3GB")
                           .value();
  EXPECT_EQ(devices[0].copy_slowdown, 0.08);
  EXPECT_EQ(devices[1].collective_promise, 3'000'000'000);
  const auto again = ParseHostDevices(FormatHostDevices(devices)).value();
  ASSERT_EQ(again.size(), devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    EXPECT_EQ(again[i].uuid, devices[i].uuid);
    EXPECT_EQ(again[i].total_bytes, devices[i].total_bytes);
    EXPECT_EQ(again[i].peer_bandwidth, devices[i].peer_bandwidth);
    EXPECT_EQ(again[i].host_bandwidth, devices[i].host_bandwidth);
    EXPECT_EQ(again[i].latency, devices[i].latency);
    EXPECT_EQ(again[i].compute_slowdown, devices[i].compute_slowdown);
    EXPECT_EQ(again[i].copy_slowdown, devices[i].copy_slowdown);
    EXPECT_EQ(again[i].peer_promise, devices[i].peer_promise);
    EXPECT_EQ(again[i].host_promise, devices[i].host_promise);
    EXPECT_EQ(again[i].collective_promise, devices[i].collective_promise);
  }
}

TEST(ParseHostDevices, NamesTheTokenThatItCannotRead) {
  const auto message = [](const std::string& text) {
    const auto devices = ParseHostDevices(text);
    EXPECT_EQ(devices.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_LT(devices.status().message().size(), 700) << text;
    return std::string(devices.status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("empty"));
  EXPECT_THAT(message(" ; "), HasSubstr("empty"));
  EXPECT_THAT(message("A=12XB"), HasSubstr("'12XB'"));
  EXPECT_THAT(message("A=0"), HasSubstr("more than 0 bytes"));
  EXPECT_THAT(message("A=1GiB@speed=3"), HasSubstr("no key 'speed'"));
  EXPECT_THAT(message("A=1GiB@peer"), HasSubstr("'peer': expected key=value"));
  EXPECT_THAT(message("A=1GiB@peer=fast"), HasSubstr("'peer=fast'"));
  EXPECT_THAT(message("A=1GiB@latency=5"), HasSubstr("'latency=5'"));
  EXPECT_THAT(message("A=1GiB@slowdown=0.2"), HasSubstr("'slowdown=0.2'"));
  EXPECT_THAT(message("A=1GiB@slowdown=nan"), HasSubstr("'slowdown=nan'"));
  EXPECT_THAT(message("A=1GiB@copy-slowdown=8"), HasSubstr("'copy-slowdown=8'"));
  EXPECT_THAT(message("A=1GiB;B"), HasSubstr("'B': expected uuid=SIZE"));
  EXPECT_THAT(message("A=1GiB;A=2GiB"), HasSubstr("'A': this uuid comes twice"));
  EXPECT_THAT(message("A B=1GiB"), HasSubstr("'A B'"));
  EXPECT_THAT(message("=1GiB"), HasSubstr("1 to 128 characters"));
  EXPECT_THAT(message("0 x 1GiB"), HasSubstr("count from 1"));
  EXPECT_THAT(message("many x 1GiB"), HasSubstr("'many'"));
  EXPECT_THAT(message("2 x lots"), HasSubstr("'lots'"));
  EXPECT_THAT(message("1GiB,,1GiB"), HasSubstr("''"));
  EXPECT_THAT(message(std::string(100000, 'y')), HasSubstr("16 KiB"));
}

TEST(HostMachine, BuildsItsDevicesAndFindsThemByUuid) {
  HostMachineOptions options;
  options.devices = ParseHostDevices("2 x 64MiB").value();
  options.host_bytes = 32 * kMiB;
  const auto machine = HostMachine::Create(options).value();
  ASSERT_EQ(machine->devices().size(), 2);
  EXPECT_EQ(machine->Find("SIM-local-1"), machine->devices()[1].get());
  EXPECT_EQ(machine->Find("host:local"), machine->host());
  EXPECT_EQ(machine->Find("SIM-local-2"), nullptr);
  EXPECT_EQ(machine->host()->free_bytes(), 32 * kMiB);
  EXPECT_TRUE(machine->host()->Allocate(kMiB).ok()) << "host memory lends as a device does";
}

TEST(HostMachine, WithoutADescriptionIsOneDeviceWithoutPeers) {
  const auto machine = HostMachine::Create({}).value();
  ASSERT_EQ(machine->devices().size(), 1);
  EXPECT_EQ(machine->devices()[0]->description().uuid, "SIM-local-0");
  EXPECT_GT(machine->devices()[0]->free_bytes(), 0);
  EXPECT_GT(machine->host()->free_bytes(), 0);
}

TEST(HostMachine, OfZeroHostBytesLendsNoHostMemory) {
  HostMachineOptions options;
  options.host_bytes = 0;
  const auto machine = HostMachine::Create(options).value();
  EXPECT_EQ(machine->host()->Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(HostMachine, RefusesADeviceThatTakesTheNameOfHostMemory) {
  HostMachineOptions options;
  options.devices = ParseHostDevices("host:local=1MiB").value();
  EXPECT_EQ(HostMachine::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.devices.clear();
  options.host_bytes = -2;
  EXPECT_EQ(HostMachine::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace hyperframes
