// Two GPUs, which do not exist, without peer access between them.
#include <cstdlib>
#include <memory>
#include <string>

#include "agent/device/borrowed_memory.h"
#include "agent/device/cuda/cuda_machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

TEST(UnreachableLender, IsNamedWithTheRemedyAndKeepsItsBytes) {
  setenv("HYPERFRAMES_FAKE_GPUS", "2,contexts,apart", /*overwrite=*/1);
  const auto machine = CudaMachine::Open({}).value();
  Device* const user = machine->gpus()[0];
  Device* const lender = machine->gpus()[1];
  EXPECT_FALSE(machine->CanReach(*user, *lender));
  const Bytes before = lender->free_bytes();
  const auto borrowed = BorrowMemory(user, lender, 64 * kMiB);
  EXPECT_EQ(borrowed.status().code(), absl::StatusCode::kFailedPrecondition) << borrowed.status();
  EXPECT_THAT(std::string(borrowed.status().message()), HasSubstr("nvidia-smi topo -p2p"));
  EXPECT_EQ(lender->free_bytes(), before);
  EXPECT_TRUE(BorrowMemory(user, user, 64 * kMiB).ok());
}

}  // namespace
}  // namespace hyperframes
