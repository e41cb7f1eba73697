// How GPUs that do not exist are said to be joined.
#include <cstdlib>
#include <memory>
#include <string>

#include "agent/device/cuda/cuda_machine.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

std::string KindBetween(const char* gpus, size_t from, size_t to) {
  setenv("HYPERFRAMES_FAKE_GPUS", gpus, /*overwrite=*/1);
  const auto machine = CudaMachine::Open({}).value();
  return machine->LinkKind(*machine->gpus().at(from), *machine->gpus().at(to));
}

TEST(LinkKind, IsPcieWhereNoGpuHasLinks) { EXPECT_EQ(KindBetween("4", 0, 1), "pcie"); }

TEST(LinkKind, IsNvlinkBehindASwitch) {
  EXPECT_EQ(KindBetween("4,nvlinks", 0, 1), "nvlink");
  EXPECT_EQ(KindBetween("4,nvlinks", 0, 3), "nvlink");
}

// Promised NVLink's speed, the PCIe path between two pairs would be taken for a broken link.
TEST(LinkKind, IsPcieBetweenGpusThatAreBridgedToOthers) {
  EXPECT_EQ(KindBetween("4,nvlinks,bridges", 0, 1), "nvlink");
  EXPECT_EQ(KindBetween("4,nvlinks,bridges", 0, 2), "pcie");
  EXPECT_EQ(KindBetween("4,nvlinks,bridges", 1, 2), "pcie");
}

}  // namespace
}  // namespace hyperframes
