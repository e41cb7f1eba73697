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
