#include "agent/device/nccl/nccl_library.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace hyperframes {
namespace {

TEST(NcclLibrary, NamesWhatItTriedAndTheRemedy) {
  setenv("HYPERFRAMES_NCCL_LIBRARY", "/nowhere/a.so", 1);
  const auto missing = NcclLibrary::Open("/nowhere/b.so", "/nowhere");
  unsetenv("HYPERFRAMES_NCCL_LIBRARY");
  if (missing.ok()) GTEST_SKIP() << "this machine's loader finds libnccl.so.2 by itself";
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  const std::string message(missing.status().message());
  for (const char* part :
       {"/nowhere/a.so", "/nowhere/b.so", "/nowhere/libnccl.so.2", "HYPERFRAMES_NCCL_LIBRARY"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(NcclLibrary, ALibraryWithoutItsFunctionsIsRefusedByName) {
  const auto other = NcclLibrary::Open("libdl.so.2", "");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition) << other.status();
}

TEST(NcclLibrary, MulticastIsOffWhateverTheEnvironmentSays) {
  setenv("NCCL_NVLS_ENABLE", "1", 1);
  NcclLibrary::Open("/nowhere/b.so", "").status().IgnoreError();
  EXPECT_STREQ(getenv("NCCL_NVLS_ENABLE"), "0");
}

// Only with a real one can its table be proved: HYPERFRAMES_TEST_NCCL names it.
TEST(NcclLibrary, OpensARealOne) {
  const char* const path = getenv("HYPERFRAMES_TEST_NCCL");
  if (path == nullptr) GTEST_SKIP() << "set HYPERFRAMES_TEST_NCCL to a libnccl.so.2";
  const auto library = NcclLibrary::Open(path, "");
  ASSERT_TRUE(library.ok()) << library.status();
  int version = 0;
  EXPECT_EQ((*library)->get_version(&version), kNcclSuccess);
  EXPECT_GE(version, 21400);
}

}  // namespace
}  // namespace hyperframes
