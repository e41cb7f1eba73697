#include "common/host_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace hyperframes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FakeRoot {
 public:
  FakeRoot() : path_(::testing::TempDir() + "/limits-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  void Write(const std::string& name, const std::string& text) const {
    for (size_t at = name.find('/', 1); at != std::string::npos; at = name.find('/', at + 1)) {
      mkdir((path_ + name.substr(0, at)).c_str(), 0755);
    }
    std::ofstream(path_ + name) << text;
  }
  HostLimits Read() const { return ReadHostLimits(path_); }

 private:
  std::string path_;
};

HostLimits Free(Bytes available) {
  HostLimits limits;
  limits.available = available;
  return limits;
}

TEST(HostLimits, TheTightestGroupOfAllAboveTheProcessHolds) {
  const FakeRoot root;
  root.Write("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   67108864 kB\n");
  root.Write("/proc/self/cgroup", "0::/jobs/one\n");
  root.Write("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/jobs/memory.max", "17179869184\n");
  root.Write("/sys/fs/cgroup/jobs/memory.current", "4294967296\n");
  root.Write("/sys/fs/cgroup/jobs/memory.stat", "anon 7\ninactive_file 1073741824\n");
  root.Write("/sys/fs/cgroup/memory.max", "68719476736\n");
  const HostLimits limits = root.Read();
  EXPECT_EQ(limits.available, 64 * kGiB);
  EXPECT_EQ(limits.group_limit, 16 * kGiB);
  EXPECT_EQ(limits.group_used, 3 * kGiB) << "cache that the kernel drops is free";
  EXPECT_EQ(RoomOf(limits).bytes, 13 * kGiB);
}

TEST(HostLimits, AContainerThatOnlySeesItsOwnGroupIsRead) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/docker/abc\n");
  root.Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  root.Write("/sys/fs/cgroup/memory.current", "4096\n");
  EXPECT_EQ(RoomOf(root.Read()).bytes, kGiB - 4096);
}

TEST(HostLimits, TheFirstVersionsWordForNoLimitIsNone) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "5:cpu,memory:/x\n0::/\n");
  root.Write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2147483648\n");
  root.Write("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1024\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(root.Read().group_limit, 2 * kGiB);
  EXPECT_EQ(root.Read().group_used, 1024);
  root.Write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(root.Read().group_limit.has_value());
}

TEST(HostLimits, WhatFitsIsLentWithoutAWord) {
  const HostBudget budget = FitHostBudget(4 * kGiB, "--host-bytes", Free(8 * kGiB));
  EXPECT_EQ(budget.bytes, 4 * kGiB);
  EXPECT_THAT(budget.sentence, IsEmpty());
}

TEST(HostLimits, WhatDoesNotFitIsLentAsFarAsItDoesWithNeedLimitAndSetting) {
  HostLimits limits = Free(64 * kGiB);
  limits.group_limit = 16 * kGiB;
  limits.group_used = 8 * kGiB;
  const HostBudget budget = FitHostBudget(32 * kGiB, "--host-bytes", limits);
  EXPECT_EQ(budget.bytes, 8 * kGiB * 15 / 16);
  EXPECT_THAT(budget.sentence,
              AllOf(HasSubstr("--host-bytes asks for 32GiB"),
                    HasSubstr("memory limit of 16GiB leaves 8GiB"), HasSubstr("docker --memory")));
}

TEST(HostLimits, MemoryThatIsNotFreeYetIsLentAndSpokenOf) {
  const HostBudget budget = FitHostBudget(128 * kGiB, "--host-bytes", Free(31 * kGiB));
  EXPECT_EQ(budget.bytes, 128 * kGiB);
  EXPECT_THAT(budget.sentence, AllOf(HasSubstr("--host-bytes asks for 128GiB"),
                                     HasSubstr("31GiB free"), HasSubstr("lower --host-bytes")));
}

TEST(HostLimits, AGroupThatIsOverItsLimitLendsNothing) {
  HostLimits limits = Free(64 * kGiB);
  limits.group_limit = kGiB;
  limits.group_used = 2 * kGiB;
  EXPECT_EQ(FitHostBudget(kGiB, "--host-bytes", limits).bytes, 0);
}

TEST(HostLimits, WithoutAnyLimitEverythingFits) {
  EXPECT_EQ(FitHostBudget(Bytes{1} << 50, "x", HostLimits()).bytes, Bytes{1} << 50);
}

TEST(HostLimits, AFailedPinNamesTheLimitThatItExceeds) {
  HostLimits limits = Free(64 * kGiB);
  limits.memlock = 8 * kMiB;
  EXPECT_THAT(WhyNotPinned(kGiB, limits), AllOf(HasSubstr("8MiB"), HasSubstr("ulimit -l")));
  EXPECT_THAT(WhyNotPinned(kMiB, limits), HasSubstr("no limit of this process"));
  EXPECT_THAT(WhyNotPinned(128 * kGiB, limits), HasSubstr("MemAvailable"));
}

TEST(HostLimits, ThisProcesssOwnLimitsAreSeen) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit lowered = before;
  // Well above what a sanitizer has mapped.
  const Bytes most = ReadHostLimits().address_space_used + (Bytes{1} << 40);
  lowered.rlim_cur = static_cast<rlim_t>(most);
  if (before.rlim_cur <= lowered.rlim_cur) GTEST_SKIP() << "it is lower already";
  ASSERT_EQ(setrlimit(RLIMIT_AS, &lowered), 0);
  const HostLimits limits = ReadHostLimits();
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(limits.address_space, most);
  EXPECT_GT(limits.address_space_used, 0);
  EXPECT_GT(limits.available.value_or(0), 0);
}

}  // namespace
}  // namespace hyperframes
