// The training process's end of a lease on another node, without hftransfer at the other one.
#include "agent/transfer/remote_link.h"

#include <memory>

#include "agent/device/host/host_memory.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

// A stream that waits for bytes that nobody has been asked for waits for this thread. Were another
// thread to make the driver wait for the whole GPU meanwhile, which allocating can, neither of the
// three would go on.
TEST(RemoteLink, AsksForAReloadBeforeAStreamWaitsForIt) {
  RemoteLink link("lease x on node b", kMiB,
                  HostMemory::Create("page", kTransferPageBytes, /*budget=*/nullptr).value(),
                  HostMemory::Create("staging", kMiB, /*budget=*/nullptr).value());
  for (uint32_t number = 1; number <= 3; ++number) {
    TransferCommand command;
    command.op = static_cast<uint16_t>(TransferOp::kFetch);
    command.bytes = 512;
    bool staged = false;
    const absl::Status added =
        link.queue(Direction::kIn)->Add(command, [&](const TransferCommand& piece, uint32_t) {
          staged = true;
          EXPECT_EQ(piece.sequence, number);
          EXPECT_EQ(link.page()->fetches.pushed.load(), number);
          return absl::OkStatus();
        });
    EXPECT_EQ(added, absl::OkStatus());
    EXPECT_TRUE(staged);
  }
}

}  // namespace
}  // namespace hyperframes
