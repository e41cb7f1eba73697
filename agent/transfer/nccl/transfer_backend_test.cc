#include "agent/transfer/nccl/transfer_backend.h"

#include "gtest/gtest.h"

namespace hyperframes {
namespace {

TEST(TransferBackend, RefusesWhatThereIsNot) {
  TransferBackendOptions options;
  options.backend = "quantum";
  EXPECT_EQ(TransferBackend::Open(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.backend = "cuda";
  options.gpu = "GPU-none";
  const auto code = TransferBackend::Open(options).status().code();
  EXPECT_TRUE(code == absl::StatusCode::kNotFound || code == absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace hyperframes
