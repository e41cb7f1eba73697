#include "agent/engine/storage.h"

#include "gtest/gtest.h"

namespace hyperframes {
namespace {

TEST(StorageState, MovesOnlyAlongItsLife) {
  using State = StorageState;
  EXPECT_TRUE(MayMove(State::kStored, State::kReloading));
  EXPECT_TRUE(MayMove(State::kReloading, State::kReloading)) << "a second buffer";
  EXPECT_TRUE(MayMove(State::kReloading, State::kReloaded));
  EXPECT_TRUE(MayMove(State::kReloaded, State::kReloading)) << "a retained graph";
  EXPECT_TRUE(MayMove(State::kReloaded, State::kReloaded)) << "a second consumer";
  EXPECT_FALSE(MayMove(State::kStored, State::kReloaded)) << "nothing was reloaded";
  for (const State from : {State::kStored, State::kReloading, State::kReloaded}) {
    EXPECT_FALSE(MayMove(from, State::kStored)) << "only Put stores";
  }
}

}  // namespace
}  // namespace hyperframes
