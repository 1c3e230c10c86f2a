// SPDX-License-Identifier: Apache-2.0
// Options: defaults, aliases, precedence and refused values.
#include "core/options.h"

#include <map>

#include "harness.h"

namespace hvd {
namespace {

Result<Options> ParseFrom(const std::map<std::string, std::string>& variables) {
  return Options::Parse([&](const char* name) {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(options_defaults_hold_when_nothing_is_set) {
  Options options = Options::Defaults();
  EXPECT_EQ(options.fusion_bytes, 128 << 20);
  EXPECT_EQ(options.batches_in_flight, 4);
  EXPECT_EQ(options.stall_warning_s, 60.0);
  EXPECT_EQ(options.host_id, "");
}

TEST(options_horovod_names_count_and_ours_win) {
  auto alias = ParseFrom({{"HOROVOD_FUSION_THRESHOLD", "1024"}});
  EXPECT_EQ(alias.value().fusion_bytes, 1024);
  auto both = ParseFrom(
      {{"HOROVOD_FUSION_THRESHOLD", "1024"}, {"HVD_FUSION_BYTES", "4096"}});
  EXPECT_EQ(both.value().fusion_bytes, 4096);
  EXPECT_EQ(ParseFrom({{"HVD_HOST_ID", "left"}}).value().host_id, "left");
}

TEST(options_a_shutdown_that_leaves_no_time_for_the_warning_moves_it) {
  EXPECT_EQ(Options::Defaults().stall_shutdown_s, 0.0);
  auto early = ParseFrom({{"HVD_STALL_SHUTDOWN_S", "30"}});
  EXPECT_EQ(early.value().stall_shutdown_s, 30.0);
  EXPECT_EQ(early.value().stall_warning_s, 15.0);
  auto late = ParseFrom({{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60.5"}});
  EXPECT_EQ(late.value().stall_warning_s, 60.0);
  auto silent =
      ParseFrom({{"HVD_STALL_SHUTDOWN_S", "30"}, {"HVD_STALL_WARNING_S", "0"}});
  EXPECT_EQ(silent.value().stall_warning_s, 0.0);
  EXPECT_FALSE(ParseFrom({{"HVD_STALL_SHUTDOWN_S", "-1"}}).ok());
  EXPECT_FALSE(ParseFrom({{"HVD_STALL_SHUTDOWN_S", "nan"}}).ok());
}

TEST(options_log_level_is_a_number_or_horovods_word) {
  const std::map<std::string, int> levels = {
      {"0", 0},    {"3", 3},       {"trace", 0}, {"debug", 0},
      {"info", 1}, {"WARNING", 2}, {"error", 3}, {"fatal", 3}};
  for (const auto& [text, level] : levels) {
    EXPECT_EQ(ParseFrom({{"HVD_LOG_LEVEL", text}}).value().log_level, level);
  }
  EXPECT_EQ(ParseFrom({{"HOROVOD_LOG_LEVEL", "info"}}).value().log_level, 1);
  for (const char* bad : {"", "loud", "4", "warn ing"}) {
    auto options = ParseFrom({{"HVD_LOG_LEVEL", bad}});
    ASSERT_FALSE(options.ok());
    EXPECT_NE(options.status().message().find("or one of these words"),
              std::string::npos);
  }
}

TEST(options_sparse_algo_is_one_of_four_words) {
  EXPECT_EQ(Options::Defaults().sparse_algo, "auto");
  for (const char* word : {"auto", "allgather", "reduce_scatter", "dense"}) {
    auto options = ParseFrom({{"HVD_SPARSE_ALGO", word}});
    ASSERT_TRUE(options.ok());
    const auto algo = ParseSparseAlgo(options.value().sparse_algo);
    EXPECT_TRUE(algo.has_value() && std::string(Name(*algo)) == word);
  }
  for (const char* bad : {"", "Auto", "alltoall"}) {
    auto options = ParseFrom({{"HVD_SPARSE_ALGO", bad}});
    ASSERT_FALSE(options.ok());
    EXPECT_NE(options.status().message().find(
                  "HVD_SPARSE_ALGO='" + std::string(bad) + "' must be auto"),
              std::string::npos);
  }
}

TEST(options_autotune_has_horovods_names) {
  Options off = Options::Defaults();
  EXPECT_EQ(off.autotune, 0);
  EXPECT_EQ(off.autotune_log, "");
  auto options = ParseFrom({{"HOROVOD_AUTOTUNE", "1"},
                            {"HOROVOD_AUTOTUNE_LOG", "/tmp/a.csv"},
                            {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "3"},
                            {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "10"},
                            {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "20"}});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options.value().autotune, 1);
  EXPECT_EQ(options.value().autotune_log, "/tmp/a.csv");
  EXPECT_EQ(options.value().autotune_warmup_samples, 3);
  EXPECT_EQ(options.value().autotune_steps_per_sample, 10);
  EXPECT_EQ(options.value().autotune_samples, 20);
  EXPECT_FALSE(ParseFrom({{"HVD_AUTOTUNE", "2"}}).ok());
  EXPECT_FALSE(ParseFrom({{"HVD_AUTOTUNE_STEPS_PER_SAMPLE", "0"}}).ok());
}

TEST(options_timeline_has_horovods_names) {
  EXPECT_EQ(Options::Defaults().timeline, "");
  auto options = ParseFrom({{"HOROVOD_TIMELINE", "/tmp/a.json"},
                            {"HOROVOD_TIMELINE_MARK_CYCLES", "1"}});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options.value().timeline, "/tmp/a.json");
  EXPECT_EQ(options.value().timeline_mark_cycles, 1);
}

TEST(options_bad_values_name_the_variable_the_value_and_the_range) {
  for (const char* bad : {"", "ten", "0", "-3", "12MB", "1e9", "33"}) {
    auto options = ParseFrom({{"HVD_BATCHES_IN_FLIGHT", bad}});
    ASSERT_FALSE(options.ok());
    const std::string& text = options.status().message();
    EXPECT_NE(text.find("HVD_BATCHES_IN_FLIGHT='" + std::string(bad) + "'"),
              std::string::npos);
    EXPECT_NE(text.find("at least 1 and at most 32"), std::string::npos);
  }
  auto alias = ParseFrom({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "-1"}});
  ASSERT_FALSE(alias.ok());
  EXPECT_NE(alias.status().message().find("HOROVOD_STALL_CHECK_TIME_SECONDS"),
            std::string::npos);
}

}  // namespace
}  // namespace hvd
