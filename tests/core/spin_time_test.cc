// SPDX-License-Identifier: Apache-2.0
// How long ranks spin: by the kernel's release, the CPU quota and the option.
#include "cpu/spin_time.h"

#include <optional>
#include <string>

#include "harness.h"

namespace hvd {
namespace {

int64_t Spin_us(int64_t option_us, const std::string& release,
                std::optional<int> quota) {
  return SpinTime(option_us, release, quota).count();
}

TEST(yield_is_free_from_linux_6_18_on) {
  for (const char* release : {"6.18.0", "6.18", "6.18-rc1", "6.19.3-generic",
                              "7.0.0", "6.100.2-cloud"}) {
    EXPECT_TRUE(YieldIsFree(release));
  }
  for (const char* release : {"6.17.9-arch1", "6.8.0-45-generic", "5.15.0",
                              "4.18.0-553.el8", "6.1.18", "3.18.100"}) {
    EXPECT_FALSE(YieldIsFree(release));
  }
}

TEST(an_unknown_release_counts_as_an_old_one) {
  for (const char* release : {"", "linux", "6", "v6.18", "6."}) {
    EXPECT_FALSE(YieldIsFree(release));
  }
}

TEST(ranks_spin_for_long_only_where_it_takes_nothing_from_others) {
  EXPECT_EQ(Spin_us(0, "6.18.44", std::nullopt), 3000);
  EXPECT_EQ(Spin_us(0, "6.17.0", std::nullopt), 60);
  EXPECT_EQ(Spin_us(0, "6.18.44", 8), 60);
}

TEST(the_option_counts_on_any_machine) {
  EXPECT_EQ(Spin_us(1, "6.18.44", std::nullopt), 1);
  EXPECT_EQ(Spin_us(500, "5.15.0", 2), 500);
  EXPECT_EQ(SpinTime(700).count(), 700);
}

}  // namespace
}  // namespace hvd
