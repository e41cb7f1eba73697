// What users read where there is no GPU, or a broken one. Needs none.
#include "agent/device/cuda/cuda_driver.h"

#include <memory>
#include <string>

#include "agent/device/cuda/cuda_machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CUresult NameOf(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}

CUresult TextOf(CUresult /*result*/, const char** text) {
  *text = "as the driver puts it";
  return CUDA_SUCCESS;
}

CudaDriver ScriptedDriver() {
  CudaDriver driver;
  driver.cuGetErrorName = NameOf;
  driver.cuGetErrorString = TextOf;
  return driver;
}

TEST(CudaDriver, SaysWhatToDoWhereThereIsNone) {
  const auto driver = CudaDriver::Open("libcuda-of-no-machine.so.1");
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(driver.status().message()),
              AllOf(HasSubstr("no CUDA driver"), HasSubstr("backend \"host\"")));
}

TEST(CudaDriver, NamesTheFunctionThatAnOldDriverLacks) {
  const auto driver = CudaDriver::Open("libc.so.6");
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(driver.status().message()), AllOf(HasSubstr("cuInit"), HasSubstr("old")));
}

TEST(CudaDriver, TurnsCodesIntoSentencesWithSubjectAndRemedy) {
  const CudaDriver driver = ScriptedDriver();
  EXPECT_TRUE(driver.Check(CUDA_SUCCESS, "cuMemCreate").ok());
  const absl::Status full = driver.Check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate", "1GiB on GPU-7");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr("cuMemCreate of 1GiB on GPU-7"), HasSubstr("OUT_OF_MEMORY"),
                    HasSubstr("as the driver puts it"), HasSubstr("ask for fewer bytes")));
}

TEST(CudaDriver, TellsApartWhatAnotherTryCanMend) {
  const CudaDriver driver = ScriptedDriver();
  const auto code = [&driver](CUresult result) { return driver.Check(result, "cu").code(); };
  EXPECT_EQ(code(CUDA_ERROR_NO_DEVICE), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(CUDA_ERROR_INVALID_VALUE), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(CUDA_ERROR_NOT_SUPPORTED), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(CUDA_ERROR_ILLEGAL_ADDRESS), absl::StatusCode::kInternal);
}

TEST(CudaDriver, KeepsItsMessagesBounded) {
  const absl::Status status =
      ScriptedDriver().Check(CUDA_ERROR_INVALID_VALUE, "cuMemMap", std::string(100000, 'x'));
  EXPECT_LT(status.message().size(), 600u);
}

TEST(CudaDriver, CopiesInBatchesOnlyWhereThatWasTried) {
  CudaDriver driver = ScriptedDriver();
  driver.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice device) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? device : 0;
    return CUDA_SUCCESS;
  };
  EXPECT_FALSE(driver.CanBatch(9)) << "a driver before CUDA 12.8";
  EXPECT_EQ(driver.CopyBatch(nullptr, nullptr, nullptr, 0, nullptr), CUDA_ERROR_NOT_SUPPORTED);
#if CUDA_VERSION >= 12080
  driver.memcpy_batch_12 = [](CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                              size_t*, size_t, size_t*, CUstream) { return CUDA_SUCCESS; };
  EXPECT_TRUE(driver.CanBatch(9));
  EXPECT_FALSE(driver.CanBatch(10));
#endif
}

#if CUDA_VERSION >= 12080
// Both forms get the same batch, in order of the stream; the older one also a place for an index.
struct SeenBatch {
  size_t count = 0;
  size_t attribute_count = 0;
  size_t first_copy = 7;
  CUmemcpySrcAccessOrder order = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  const size_t* failed = nullptr;
  CUstream stream = nullptr;
};
SeenBatch seen_batch;

TEST(CudaDriver, CallsEachFormOfABatchWithWhatItTakes) {
  CUdeviceptr addresses[2] = {1, 2};
  size_t sizes[2] = {3, 4};
  const auto stream = reinterpret_cast<CUstream>(&sizes);
  CudaDriver driver = ScriptedDriver();
  const auto expect_seen = [&](const char* form) {
    EXPECT_EQ(driver.CopyBatch(addresses, addresses, sizes, 2, stream), CUDA_SUCCESS) << form;
    EXPECT_EQ(seen_batch.count, 2u) << form;
    EXPECT_EQ(seen_batch.attribute_count, 1u) << form;
    EXPECT_EQ(seen_batch.first_copy, 0u) << form;
    EXPECT_EQ(seen_batch.order, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) << form;
    EXPECT_EQ(seen_batch.stream, stream) << form;
  };
  driver.memcpy_batch_12 = [](CUdeviceptr*, CUdeviceptr*, size_t*, size_t count,
                              CUmemcpyAttributes* attributes, size_t* first_copies,
                              size_t attribute_count, size_t* failed, CUstream stream) {
    seen_batch = {count,  attribute_count, first_copies[0], attributes->srcAccessOrder,
                  failed, stream};
    return CUDA_SUCCESS;
  };
  expect_seen("CUDA 12.8");
  EXPECT_NE(seen_batch.failed, nullptr);
  seen_batch = {};
  driver.memcpy_batch = [](CUdeviceptr*, CUdeviceptr*, size_t*, size_t count,
                           CUmemcpyAttributes* attributes, size_t* first_copies,
                           size_t attribute_count, CUstream stream) {
    seen_batch = {count,   attribute_count, first_copies[0], attributes->srcAccessOrder,
                  nullptr, stream};
    return CUDA_SUCCESS;
  };
  expect_seen("CUDA 13");
  EXPECT_EQ(seen_batch.failed, nullptr) << "the newer form comes first";
}
#endif

TEST(CudaMachine, RefusesSizesThatCannotBeMeant) {
  CudaMachineOptions options;
  options.host_bytes = -2;
  EXPECT_EQ(CudaMachine::Open(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.host_bytes = 0;
  options.reserve_bytes = -1;
  EXPECT_EQ(CudaMachine::Open(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace hyperframes
