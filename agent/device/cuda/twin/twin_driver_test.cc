// One fake GPU seen as two: what the twin changes on the way to the driver, and what it lets pass.
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "agent/device/cuda/cuda_driver.h"
#include "agent/device/cuda/nvml.h"
#include "agent/device/cuda/twin/twin_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Bytes kShare = 4 * kGiB;  // Half of a fake GPU.
constexpr size_t kSome = 64 << 20;
constexpr CUmemAllocationHandleType kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr const char* kReal = "GPU-00000000-0000-0000-0000-000000000001";
constexpr const char* kTwin = "GPU-ff000000-0000-0000-0000-000000000001";

CUmemAllocationProp On(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = kDescriptor;
  return properties;
}

class TwinDriverTest : public ::testing::Test {
 protected:
  TwinDriverTest() : driver_(CudaDriver::Open(getenv("HYPERFRAMES_CUDA_LIBRARY")).value()) {}
  ~TwinDriverTest() override { unsetenv("CUDA_VISIBLE_DEVICES"); }
  const CudaDriver& driver() const { return *driver_; }

  // Starts the driver anew; the first bytes of the UUIDs that it shows, in its order.
  std::vector<int> FirstBytes(const char* visible) {
    if (visible != nullptr) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    std::vector<int> bytes;
    int count = 0;
    if (driver().cuInit(0) != CUDA_SUCCESS) return bytes;
    EXPECT_EQ(driver().cuDeviceGetCount(&count), CUDA_SUCCESS);
    for (CUdevice device = 0; device < count; ++device) {
      CUuuid uuid = {};
      EXPECT_EQ(driver().cuDeviceGetUuid(&uuid, device), CUDA_SUCCESS);
      bytes.push_back(static_cast<unsigned char>(uuid.bytes[0]));
    }
    EXPECT_EQ(visible == nullptr, getenv("CUDA_VISIBLE_DEVICES") == nullptr);
    if (visible != nullptr) {
      EXPECT_STREQ(getenv("CUDA_VISIBLE_DEVICES"), visible);
    }
    return bytes;
  }

  CUmemGenericAllocationHandle Create(CUdevice device, size_t bytes = kSome) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = On(device);
    EXPECT_EQ(driver().cuMemCreate(&handle, bytes, &properties, 0), CUDA_SUCCESS);
    return handle;
  }
  int Export(CUmemGenericAllocationHandle handle) {
    int descriptor = -1;
    EXPECT_EQ(driver().cuMemExportToShareableHandle(&descriptor, handle, kDescriptor, 0),
              CUDA_SUCCESS);
    return descriptor;
  }
  CUresult Import(int descriptor, CUmemGenericAllocationHandle* handle) {
    void* const as_pointer = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
    return driver().cuMemImportFromShareableHandle(handle, as_pointer, kDescriptor);
  }
  CUdevice DeviceOf(CUmemGenericAllocationHandle handle) {
    CUmemAllocationProp properties = {};
    EXPECT_EQ(driver().cuMemGetAllocationPropertiesFromHandle(&properties, handle), CUDA_SUCCESS);
    return properties.location.id;
  }
  static Bytes UsedOn(const char* uuid) {
    const NodeGpu gpu = (*Nvml::Get())->Find(uuid).value();
    return gpu.total_bytes - gpu.free_bytes;
  }

 private:
  const std::unique_ptr<CudaDriver> driver_;
};

TEST_F(TwinDriverTest, TellsOfTwoGpusThatReachEachOther) {
  EXPECT_THAT(FirstBytes(nullptr), ElementsAre(0x00, 0xff));
  int reaches = 0;
  EXPECT_EQ(
      driver().cuDeviceGetP2PAttribute(&reaches, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1),
      CUDA_SUCCESS);
  EXPECT_EQ(reaches, 1);
  size_t totals[2] = {0, 0};
  for (const CUdevice device : {0, 1}) {
    EXPECT_EQ(driver().cuDeviceTotalMem(&totals[device], device), CUDA_SUCCESS);
  }
  EXPECT_EQ(totals[0] + totals[1], 8ull << 30);
  EXPECT_EQ(totals[1], static_cast<size_t>(kShare));
  const std::vector<NodeGpu> gpus = (*Nvml::Get())->List();
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].uuid, kReal);
  EXPECT_EQ(gpus[1].uuid, kTwin);
  EXPECT_EQ(gpus[0].total_bytes, kShare);
  EXPECT_EQ(gpus[1].total_bytes, kShare);
  EXPECT_TRUE((*Nvml::Get())->AreJoinedByNvLink(kReal, kTwin));
}

TEST_F(TwinDriverTest, HidesWhatTheProcessIsNotToSee) {
  EXPECT_THAT(FirstBytes("0"), ElementsAre(0x00));
  EXPECT_THAT(FirstBytes("1"), ElementsAre(0xff));
  EXPECT_THAT(FirstBytes("1,0"), ElementsAre(0xff, 0x00));
  EXPECT_THAT(FirstBytes(kTwin), ElementsAre(0xff));
  EXPECT_THAT(FirstBytes("GPU-00,GPU-ff"), ElementsAre(0x00, 0xff));
  EXPECT_THAT(FirstBytes("0,2,1"), ElementsAre(0x00));
  EXPECT_THAT(FirstBytes("GPU-deadbeef"), IsEmpty());
  EXPECT_THAT(FirstBytes(""), IsEmpty());
}

TEST_F(TwinDriverTest, KeepsTheTwinsMemoryApartUntilNobodyHoldsIt) {
  FirstBytes(nullptr);
  const CUmemGenericAllocationHandle twins = Create(1);
  EXPECT_EQ(UsedOn(kTwin), Bytes{kSome});
  EXPECT_EQ(UsedOn(kReal), 0);
  const int descriptor = Export(twins);
  EXPECT_EQ(DeviceOf(twins), 1);
  EXPECT_EQ(driver().cuMemRelease(twins), CUDA_SUCCESS);
  EXPECT_EQ(UsedOn(kTwin), Bytes{kSome}) << "the descriptor is on its way";
  for (int time = 0; time < 2; ++time) {  // A descriptor can be taken in more than once.
    CUmemGenericAllocationHandle again = 0;
    ASSERT_EQ(Import(descriptor, &again), CUDA_SUCCESS);
    EXPECT_EQ(DeviceOf(again), 1);
    EXPECT_EQ(driver().cuMemRelease(again), CUDA_SUCCESS);
  }
  CUmemGenericAllocationHandle mapped = 0;
  ASSERT_EQ(Import(descriptor, &mapped), CUDA_SUCCESS);
  close(descriptor);
  CUdeviceptr address = 0;
  ASSERT_EQ(driver().cuMemAddressReserve(&address, kSome, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuMemMap(address, kSome, 0, mapped, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver().cuMemRelease(mapped), CUDA_SUCCESS);
  EXPECT_EQ(UsedOn(kTwin), Bytes{kSome}) << "a mapping holds it";
  EXPECT_EQ(driver().cuMemUnmap(address, kSome), CUDA_SUCCESS);
  EXPECT_EQ(UsedOn(kTwin), 0);
  EXPECT_EQ(UsedOn(kReal), 0);
  EXPECT_EQ(driver().cuMemAddressFree(address, kSome), CUDA_SUCCESS);
}

TEST_F(TwinDriverTest, LetsMemoryOfTheGpuItselfPass) {
  FirstBytes("1,0");
  const CUmemGenericAllocationHandle own = Create(1);
  EXPECT_EQ(UsedOn(kTwin), 0);
  EXPECT_EQ(UsedOn(kReal), Bytes{kSome});
  const int descriptor = Export(own);
  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(Import(descriptor, &again), CUDA_SUCCESS);
  EXPECT_EQ(DeviceOf(again), 1);
  close(descriptor);
  driver().cuMemRelease(own);
  driver().cuMemRelease(again);
  EXPECT_EQ(UsedOn(kReal), 0);
}

TEST_F(TwinDriverTest, LendsNoMoreThanItsShareAndTakesInNothingElse) {
  FirstBytes(nullptr);
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp twins = On(1);
  EXPECT_EQ(driver().cuMemCreate(&handle, kShare + (2 << 20), &twins, 0), CUDA_ERROR_OUT_OF_MEMORY);
  const CUmemGenericAllocationHandle most = Create(1, kShare);
  EXPECT_EQ(driver().cuMemCreate(&handle, 2 << 20, &twins, 0), CUDA_ERROR_OUT_OF_MEMORY);
  driver().cuMemRelease(most);
  const CUmemAllocationProp nobodys = On(2);
  EXPECT_EQ(driver().cuMemCreate(&handle, kSome, &nobodys, 0), CUDA_ERROR_INVALID_DEVICE);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  EXPECT_NE(Import(ends[0], &handle), CUDA_SUCCESS) << "an empty socket";
  ASSERT_EQ(send(ends[1], "hello", 5, 0), 5);
  EXPECT_NE(Import(ends[0], &handle), CUDA_SUCCESS) << "somebody else's words";
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace hyperframes
