// The fake driver refuses what the real one refuses, or the tests on it prove nothing.
#include <cuda.h>
#include <sys/mman.h>

#include <thread>

#include "agent/device/cuda/cuda_driver.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

constexpr size_t kGranule = size_t{2} << 20;

class FakeDriverTest : public testing::Test {
 protected:
  FakeDriverTest() : driver_(*CudaDriver::Get().value()) {}

  CUmemGenericAllocationHandle Create(CUdevice device, size_t bytes) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0;
    created_ = driver_.cuMemCreate(&handle, bytes, &properties, 0);
    return handle;
  }
  // `granules` of `lender`, mapped for nobody yet.
  CUdeviceptr Map(CUdevice lender, size_t granules) {
    const auto handle = Create(lender, granules * kGranule);
    CUdeviceptr address = 0;
    EXPECT_EQ(driver_.cuMemAddressReserve(&address, granules * kGranule, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuMemMap(address, granules * kGranule, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuMemRelease(handle), CUDA_SUCCESS);
    return address;
  }
  CUresult Allow(CUdeviceptr address, size_t bytes, CUdevice device) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return driver_.cuMemSetAccess(address, bytes, &access, 1);
  }
  CUcontext Enter(CUdevice device) {
    CUcontext context = nullptr;
    EXPECT_EQ(driver_.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuCtxPushCurrent(context), CUDA_SUCCESS);
    return context;
  }
  void Leave(CUdevice device) {
    CUcontext context = nullptr;
    EXPECT_EQ(driver_.cuCtxPopCurrent(&context), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
  }

  const CudaDriver& driver_;
  CUresult created_ = CUDA_SUCCESS;
};

TEST_F(FakeDriverTest, AllocatesGranulesOnly) {
  Create(0, kGranule + 4096);
  EXPECT_EQ(created_, CUDA_ERROR_INVALID_VALUE);
  Create(7, kGranule);
  EXPECT_EQ(created_, CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(FakeDriverTest, CopiesForTheDeviceOnlyThatWasAllowedIt) {
  const CUdeviceptr address = Map(/*lender=*/1, /*granules=*/2);
  Enter(0);
  EXPECT_EQ(driver_.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Allow(address, 2 * kGranule, 1), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Allow(address, 2 * kGranule, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuMemsetD8Async(address + 2 * kGranule - 4, 1, 8, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  Leave(0);
}

TEST_F(FakeDriverTest, UnmapsWholeMappingsAndFreesWholeReservations) {
  const CUdeviceptr address = Map(0, 2);
  EXPECT_EQ(driver_.cuMemUnmap(address, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.cuMemAddressFree(address, 2 * kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.cuMemUnmap(address, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuMemAddressFree(address, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.cuMemAddressFree(address, 2 * kGranule), CUDA_SUCCESS);
}

TEST_F(FakeDriverTest, MapsNoMoreThanThereIs) {
  const auto handle = Create(0, kGranule);
  CUdeviceptr address = 0;
  ASSERT_EQ(driver_.cuMemAddressReserve(&address, 2 * kGranule, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuMemMap(address, 2 * kGranule, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.cuMemMap(address, kGranule / 2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeDriverTest, WorksInTheContextOfEachThreadAlone) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  EXPECT_EQ(driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_ERROR_INVALID_CONTEXT);
  Enter(0);
  ASSERT_EQ(driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuEventRecord(event, stream), CUDA_SUCCESS);
  std::thread([&] {
    EXPECT_EQ(driver_.cuEventRecord(event, stream), CUDA_ERROR_INVALID_CONTEXT);
    Enter(1);
    EXPECT_EQ(driver_.cuEventRecord(event, nullptr), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(driver_.cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
    Leave(1);
  }).join();
  EXPECT_EQ(driver_.cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver_.cuEventDestroy(event), CUDA_SUCCESS);
  Leave(0);
}

TEST_F(FakeDriverTest, ForgetsAContextThatNobodyRetains) {
  const CUcontext context = Enter(0);
  Leave(0);
  EXPECT_EQ(driver_.cuCtxPushCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver_.cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(FakeDriverTest, PinsARangeOnce) {
  void* const data =
      mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(driver_.cuMemHostRegister(data, 8192, 0), CUDA_ERROR_INVALID_CONTEXT);
  Enter(0);
  EXPECT_EQ(driver_.cuMemHostRegister(data, 8192, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuMemHostRegister(data, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(driver_.cuMemHostUnregister(data), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuMemHostUnregister(data), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  Leave(0);
  munmap(data, 8192);
}

#if CUDA_VERSION >= 13000
TEST_F(FakeDriverTest, BatchesWhatTheRealOneWouldBatchAndNothingElse) {
  ASSERT_NE(driver_.memcpy_batch, nullptr);
  const CUdeviceptr address = Map(0, 1);
  ASSERT_EQ(Allow(address, kGranule, 0), CUDA_SUCCESS);
  CUdeviceptr to[2] = {address, address + 8};
  CUdeviceptr from[2] = {address + 16, address + 16};  // The same source twice is no dependency.
  size_t sizes[2] = {8, 8};
  CUmemcpyAttributes attributes[2] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first_copies[2] = {0, 1};
  size_t count = 2;
  size_t attribute_count = 1;
  CUstream stream = nullptr;
  const auto copy = [&](CUstream on) {
    return driver_.memcpy_batch(to, from, sizes, count, attributes, first_copies, attribute_count,
                                on);
  };
  EXPECT_EQ(copy(stream), CUDA_ERROR_INVALID_CONTEXT);
  Enter(0);
  ASSERT_EQ(driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  EXPECT_EQ(copy(stream), CUDA_SUCCESS);
  EXPECT_EQ(copy(nullptr), CUDA_ERROR_INVALID_VALUE) << "the legacy default stream";
  attribute_count = 2;
  EXPECT_EQ(copy(stream), CUDA_ERROR_INVALID_VALUE) << "the second attribute has no order";
  attribute_count = 3;
  EXPECT_EQ(copy(stream), CUDA_ERROR_INVALID_VALUE) << "more attributes than copies";
  attribute_count = 1;
  first_copies[0] = 1;
  EXPECT_EQ(copy(stream), CUDA_ERROR_INVALID_VALUE) << "the first copy has no attribute";
  first_copies[0] = 0;
  sizes[1] = 0;
  EXPECT_EQ(copy(stream), CUDA_ERROR_INVALID_VALUE);
  sizes[1] = 8;
  from[1] = address + kGranule;
  EXPECT_EQ(copy(stream), CUDA_ERROR_INVALID_VALUE) << "nobody's memory";
  count = 0;
  EXPECT_EQ(copy(stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuStreamDestroy(stream), CUDA_SUCCESS);
  Leave(0);
}

TEST_F(FakeDriverTest, EndsAProcessWhoseBatchDependsOnItsOrder) {
  const auto copy = [this] {
    const CUdeviceptr address = Map(0, 1);
    Allow(address, kGranule, 0);
    Enter(0);
    CUstream stream = nullptr;
    driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    CUdeviceptr to[2] = {address, address + 8};
    CUdeviceptr from[2] = {address + 16, address};
    size_t sizes[2] = {8, 8};
    driver_.CopyBatch(to, from, sizes, 2, stream);
  };
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(copy(), "depend on each other");
}
#endif

TEST_F(FakeDriverTest, EndsAProcessThatUnmapsWhatACopyUses) {
  const auto unmap = [this] {
    const CUdeviceptr address = Map(1, 1);
    Enter(0);
    Allow(address, kGranule, 0);
    void* words = nullptr;
    driver_.cuMemHostAlloc(&words, 4096, 0);
    driver_.cuStreamWaitValue32(nullptr, reinterpret_cast<CUdeviceptr>(words), 1,
                                CU_STREAM_WAIT_VALUE_GEQ);
    driver_.cuMemsetD8Async(address, 1, 8, nullptr);
    driver_.cuMemUnmap(address, kGranule);
  };
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(unmap(), "unmapped while a copy uses it");
}

}  // namespace
}  // namespace hyperframes
