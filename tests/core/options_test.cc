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

TEST(options_an_empty_value_is_none) {
  auto empty = ParseFrom({{"HVD_FUSION_BYTES", ""},
                          {"HOROVOD_FUSION_THRESHOLD", "1024"},
                          {"HVD_SPARSE_ALGO", ""},
                          {"HVD_LOG_LEVEL", ""},
                          {"HVD_STALL_WARNING_S", ""},
                          {"HOROVOD_STALL_CHECK_DISABLE", "1"}});
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty.value().fusion_bytes, 1024);
  EXPECT_EQ(empty.value().log_level, Options::Defaults().log_level);
  EXPECT_EQ(empty.value().stall_warning_s, 0.0);
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

TEST(options_horovods_switch_turns_both_limits_of_stalls_off) {
  const char kSwitch[] = "HOROVOD_STALL_CHECK_DISABLE";
  const std::pair<const char*, const char*> limit{
      "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "30"};
  const auto off = ParseFrom({{kSwitch, "1"}, limit});
  EXPECT_EQ(off.value().stall_warning_s, 0.0);
  EXPECT_EQ(off.value().stall_shutdown_s, 0.0);
  EXPECT_EQ(ParseFrom({{kSwitch, "0"}, limit}).value().stall_shutdown_s, 30.0);
  const auto ours = ParseFrom({{kSwitch, "1"}, {"HVD_STALL_SHUTDOWN_S", "40"}});
  EXPECT_EQ(ours.value().stall_warning_s, 0.0);
  EXPECT_EQ(ours.value().stall_shutdown_s, 40.0);
}

TEST(options_log_level_is_a_number_or_horovods_word) {
  const std::map<std::string, LogLevel> levels = {
      {"0", LogLevel::kDebug},     {"3", LogLevel::kError},
      {"trace", LogLevel::kDebug}, {"debug", LogLevel::kDebug},
      {"info", LogLevel::kInfo},   {"WARNING", LogLevel::kWarning},
      {"error", LogLevel::kError}, {"fatal", LogLevel::kError}};
  for (const auto& [text, level] : levels) {
    EXPECT_EQ(ParseFrom({{"HVD_LOG_LEVEL", text}}).value().log_level, level);
  }
  EXPECT_EQ(ParseFrom({{"HOROVOD_LOG_LEVEL", "info"}}).value().log_level,
            LogLevel::kInfo);
  for (const char* bad : {"loud", "4", "warn ing"}) {
    auto options = ParseFrom({{"HVD_LOG_LEVEL", bad}});
    ASSERT_FALSE(options.ok());
    EXPECT_NE(options.status().message().find(
                  "must be debug, info, warning, error or a whole number"),
              std::string::npos);
  }
}

TEST(options_sparse_algo_is_one_of_four_words) {
  EXPECT_EQ(Options::Defaults().sparse_algo, SparseAlgo::kAuto);
  for (const char* word : {"auto", "allgather", "reduce_scatter", "dense"}) {
    auto options = ParseFrom({{"HVD_SPARSE_ALGO", word}});
    ASSERT_TRUE(options.ok());
    EXPECT_EQ(std::string(Name(options.value().sparse_algo)), word);
  }
  for (const char* bad : {"Auto", "alltoall"}) {
    auto options = ParseFrom({{"HVD_SPARSE_ALGO", bad}});
    ASSERT_FALSE(options.ok());
    EXPECT_EQ(options.status().message(),
              "HVD_SPARSE_ALGO='" + std::string(bad) +
                  "' (how rows of tf.IndexedSlices travel): must be auto, "
                  "allgather, reduce_scatter or dense.");
  }
}

TEST(options_join_average_is_one_of_two_words) {
  EXPECT_EQ(Options::Defaults().join_average, JoinAverage::kSize);
  for (const char* word : {"size", "active"}) {
    auto options = ParseFrom({{"HVD_JOIN_AVERAGE", word}});
    ASSERT_TRUE(options.ok());
    EXPECT_EQ(std::string(Name(options.value().join_average)), word);
  }
  auto options = ParseFrom({{"HVD_JOIN_AVERAGE", "sizes"}});
  ASSERT_FALSE(options.ok());
  EXPECT_NE(options.status().message().find("must be size or active."),
            std::string::npos);
}

TEST(options_switches_are_0_or_1_and_nccl_has_three_values) {
  const Options defaults = Options::Defaults();
  EXPECT_TRUE(defaults.shm && defaults.gpu_lane);
  EXPECT_FALSE(defaults.check_numerics || defaults.async_completion);
  EXPECT_FALSE(ParseFrom({{"HVD_SHM", "0"}}).value().shm);
  EXPECT_TRUE(ParseFrom({{"HVD_CHECK_NUMERICS", "1"}}).value().check_numerics);
  for (const char* bad : {"2", "-1", "true"}) {
    auto options = ParseFrom({{"HVD_SHM", bad}});
    ASSERT_FALSE(options.ok());
    EXPECT_NE(options.status().message().find(
                  "must be a whole number of at least 0 and at most 1."),
              std::string::npos);
  }
  EXPECT_EQ(defaults.nccl, NcclUse::kOn);
  EXPECT_EQ(ParseFrom({{"HVD_NCCL", "0"}}).value().nccl, NcclUse::kOff);
  EXPECT_EQ(ParseFrom({{"HVD_NCCL", "2"}}).value().nccl,
            NcclUse::kOnSharedGpus);
  EXPECT_FALSE(ParseFrom({{"HVD_NCCL", "3"}}).ok());
}

TEST(options_autotune_has_horovods_names) {
  Options off = Options::Defaults();
  EXPECT_FALSE(off.autotune);
  EXPECT_EQ(off.autotune_log, "");
  auto options = ParseFrom({{"HOROVOD_AUTOTUNE", "1"},
                            {"HOROVOD_AUTOTUNE_LOG", "/tmp/a.csv"},
                            {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "3"},
                            {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "10"},
                            {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "20"}});
  ASSERT_TRUE(options.ok());
  EXPECT_TRUE(options.value().autotune);
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
  EXPECT_TRUE(options.value().timeline_mark_cycles);
}

TEST(options_bad_values_name_the_variable_the_value_and_the_range) {
  for (const char* bad : {" ", "ten", "0", "-3", "12MB", "1e9", "33"}) {
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
