// SPDX-License-Identifier: Apache-2.0
// CPU quotas of control groups: their texts, and which group's holds.
#include "cpu/cpu_quota.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "harness.h"
#include "temp_directory.h"

namespace hvd {
namespace {

// 0: no limit.
int Cores(const std::optional<int>& cores) { return cores.value_or(0); }

TEST(a_quota_is_rounded_up_to_whole_cores) {
  EXPECT_EQ(Cores(CoresOfQuota("200000 100000\n")), 2);
  EXPECT_EQ(Cores(CoresOfQuota("200001 100000\n")), 3);
  EXPECT_EQ(Cores(CoresOfQuota("1000 100000")), 1);
  EXPECT_EQ(Cores(CoresOfQuota("50000 10000")), 5);
  // As the two files of v1 are joined.
  EXPECT_EQ(Cores(CoresOfQuota("150000\n 100000\n")), 2);
  EXPECT_EQ(Cores(CoresOfQuota("9223372036854775807 1")), 2147483647);
}

TEST(a_text_without_a_quota_is_no_limit) {
  for (const char* text :
       {"max 100000\n", "-1\n 100000\n", "", " ", "max", "100000", "0 100000",
        "100000 0", "100000 -5", "100000 x", "x 100000",
        "92233720368547758080 1", "\xff\xfe"}) {
    EXPECT_FALSE(CoresOfQuota(text).has_value());
  }
}

class Groups {
 public:
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_.file(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  int CoresOf(const std::string& groups) const {
    return Cores(CoresOfGroups(groups, root()));
  }
  std::string root() const { return directory_.file("cgroup"); }

 private:
  TempDirectory directory_;
};

TEST(the_least_quota_of_a_group_and_those_above_holds) {
  Groups groups;
  groups.Write("cgroup/jobs/one/cpu.max", "max 100000\n");
  groups.Write("cgroup/jobs/two/cpu.max", "300000 100000\n");
  groups.Write("cgroup/jobs/three/cpu.max", "800000 100000\n");
  EXPECT_EQ(groups.CoresOf("0::/jobs/one\n"), 0);
  EXPECT_EQ(groups.CoresOf("0::/jobs/two\n"), 3);
  groups.Write("cgroup/jobs/cpu.max", "600000 100000\n");
  EXPECT_EQ(groups.CoresOf("0::/jobs/one\n"), 6);
  EXPECT_EQ(groups.CoresOf("0::/jobs/two\n"), 3);
  EXPECT_EQ(groups.CoresOf("0::/jobs/three\n"), 6);
  EXPECT_EQ(groups.CoresOf("0::/\n"), 0);
  // A container has its own group as the root.
  groups.Write("cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(groups.CoresOf("0::/\n"), 2);
  EXPECT_EQ(groups.CoresOf("0::/jobs/two\n"), 2);
  EXPECT_EQ(groups.CoresOf("0::/of/the/host\n"), 2);
  EXPECT_EQ(groups.CoresOf("0::/../elsewhere\n"), 2);
}

TEST(the_quota_of_version_1_is_in_two_files) {
  Groups groups;
  groups.Write("cgroup/cpu/docker/a:b/cpu.cfs_quota_us", "250000\n");
  groups.Write("cgroup/cpu/docker/a:b/cpu.cfs_period_us", "100000\n");
  groups.Write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  groups.Write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const std::string others = "9:name=systemd:/\n3:cpuset:/\n";
  EXPECT_EQ(groups.CoresOf(others + "2:cpu,cpuacct:/docker/a:b\n0::/\n"), 3);
  EXPECT_EQ(groups.CoresOf(others + "2:cpu,cpuacct:/docker\n"), 0);
  EXPECT_EQ(groups.CoresOf(others + "2:cpuacct:/docker/a:b\n"), 0);
}

TEST(what_cannot_be_read_is_no_limit) {
  Groups groups;
  EXPECT_EQ(groups.CoresOf("0::/jobs/one\n1:cpu:/jobs\n"), 0);
  // A directory in place of a file.
  groups.Write("cgroup/cpu.max/file", "");
  EXPECT_EQ(groups.CoresOf("0::/\n"), 0);
  groups.Write("cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(groups.CoresOf("1:cpu:/\n"), 0);
  groups.Write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  for (const char* text : {"", "\n\n", "0", "0:", "1:cpu", "1:cpu:", "1:cpu:x",
                           "::", "\xff:\xff:\xff"}) {
    EXPECT_EQ(groups.CoresOf(text), 0);
  }
  EXPECT_EQ(groups.CoresOf("1:cpu:/"), 2);
}

TEST(this_process_has_a_core_or_no_limit) {
  EXPECT_TRUE(CpuQuotaCores().value_or(1) >= 1);
}

}  // namespace
}  // namespace hvd
