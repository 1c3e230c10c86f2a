// SPDX-License-Identifier: Apache-2.0
// Runtime with autotune on: no number changes, and it ends.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/log.h"
#include "core/runtime.h"
#include "harness.h"
#include "other_process.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"
#include "thread_world.h"

namespace hvd {
namespace {

std::vector<std::string> LinesOf(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// A file that is gone at the end of the test.
struct TemporaryFile {
  TemporaryFile() {
    const int file = mkstemp(path.data());
    EXPECT_TRUE(file >= 0);
    if (file >= 0) close(file);
  }
  ~TemporaryFile() { std::remove(path.c_str()); }
  std::string path = "/tmp/runtime_test.XXXXXX";
};

Options TuningOptions(const std::string& log) {
  Options options = Options::Defaults();
  options.autotune = true;
  options.autotune_log = log;
  options.autotune_steps_per_sample = 1;
  options.autotune_samples = 12;
  options.fusion_bytes = 65536;
  options.shm_bytes = 65536;
  options.shm_chunk_bytes = 4096;
  return options;
}

// Steps until the tuner on rank 0 has settled, and one more.
void TrainUntil(const std::atomic<bool>& settled, int rank, Runtime* runtime) {
  for (int step = 0, left = 2; left > 0; ++step) {
    const float told = rank == 0 && settled ? 1.0f : 0.0f;
    auto flag = Start(runtime, {"settled"}, {{told}});
    std::vector<PendingPtr> calls;
    for (int t = 0; t < 20; ++t) {
      calls.push_back(Start(runtime, {"t" + std::to_string(t)},
                            {Filled(5000, 0.1f * (rank + t + step))}));
    }
    for (int t = 0; t < 20; ++t) {
      EXPECT_EQ(calls[t]->Wait().message(), "");
      // Rank order, bit for bit.
      const int at = t + step;
      const float sum = (0.1f * at + 0.1f * (1 + at)) + 0.1f * (2 + at);
      EXPECT_TRUE(calls[t]->out[0] == Filled(5000, sum));
    }
    ASSERT_EQ(flag->Wait().message(), "");
    if (flag->out[0][0] > 0) --left;
  }
}

TEST(runtime_autotune_changes_chunks_between_batches_and_no_number) {
  for (bool shared : {false, true}) {
    TemporaryFile log;
    std::atomic<bool> settled{false};
    std::string told;
    SetLogSink([&](LogLevel, const std::string& line) {
      if (line.find("autotune has settled") == std::string::npos) return;
      told = line;
      settled = true;
    });
    const Options options = TuningOptions(log.path);
    ThreadWorld world(3, {}, 4096);
    RunRanks(3, [&](int rank) {
      Runtime runtime(
          shared ? world.OpenShared(rank, options, 1) : world.Open(rank),
          options);
      EXPECT_EQ(runtime.Start({{0, 1}}).message(), "");
      TrainUntil(settled, rank, &runtime);
      runtime.Stop();
    });
    SetLogSink(nullptr);
    const std::vector<std::string> lines = LinesOf(log.path);
    ASSERT_TRUE(lines.size() > 3);
    EXPECT_EQ(lines[0],
              "sample,kind,fusion_bytes,chunk_bytes,batches_in_flight,steps,"
              "mb_per_s");
    EXPECT_EQ(lines[1].find("1,warmup,65536,4096,4,"), 0u);
    EXPECT_EQ(lines[2].find("2,sample,65536,4096,4,"), 0u);
    EXPECT_EQ(lines[3].find("3,sample,65536,4096,"), std::string::npos);
    EXPECT_NE(lines.back().find(",final,"), std::string::npos);
    const std::string knob =
        shared ? "HVD_SHM_CHUNK_BYTES=" : "HVD_CHUNK_BYTES=";
    EXPECT_NE(told.find(" HVD_FUSION_BYTES="), std::string::npos);
    EXPECT_NE(told.find(" " + knob), std::string::npos);
    EXPECT_NE(told.find(" HVD_BATCHES_IN_FLIGHT="), std::string::npos);
  }
}

TEST(runtime_autotune_is_not_in_the_way_of_ends_and_aborted_steps) {
  TemporaryFile log;
  const Options options = TuningOptions(log.path);
  for (int leaver : {0, 1}) {  // the one that decides or not
    ThreadWorld world(2);
    RunRanks(2, [&](int rank) {
      Runtime runtime(world.OpenShared(rank, options, 0), options);
      EXPECT_EQ(runtime.Start({}).message(), "");
      for (int step = 1; step <= 60; ++step) {
        const bool is_aborted = step % 5 == 0;
        const bool is_early = step % 10 == 0;  // the leader hears of it first
        Ask ask{"x"};
        ask.step = step;
        Ask other{"y"};
        other.step = step;
        // Rank 1's reports come in order: behind "heard" the leader knows of
        // the abort.
        const auto hear = [&] {
          auto heard = Start(&runtime, {"heard"}, {Filled(2, 1.0f)});
          EXPECT_EQ(heard->Wait().message(), "");
        };
        if (is_early && rank == 0) hear();
        auto first = Start(&runtime, ask, {Filled(9000, 1.0f)});
        auto second = Start(&runtime, other, {Filled(9000, 1.0f)});
        if (is_aborted && rank == 1) {
          runtime.Cancel(0, second->ticket, Cancelled("out of range"));
        }
        if (is_early) {
          EXPECT_EQ(second->Wait().code(),
                    rank == 1 ? StatusCode::kCancelled : StatusCode::kPeerLost);
          if (rank == 1) hear();
        }
        // What had been agreed on when the step was aborted completes.
        for (auto& call : {first, second}) {
          const Status status = call->Wait();
          if (status.ok()) EXPECT_TRUE(call->out[0] == Filled(9000, 2.0f));
          EXPECT_TRUE(status.ok() || is_aborted);
        }
      }
      if (rank != leaver) {
        auto late = Start(&runtime, {"z"}, {Filled(2, 1.0f)});
        EXPECT_EQ(late->Wait().code(), StatusCode::kPeerLost);
      }
      runtime.Stop();
    });
  }
}

TEST(runtime_autotune_has_nothing_to_do_for_one_rank) {
  TemporaryFile log;
  ThreadWorld world(1);
  Runtime runtime(world.Open(0), TuningOptions(log.path));
  EXPECT_EQ(runtime.Start({}).message(), "");
  for (int step = 0; step < 200; ++step) {
    EXPECT_EQ(Start(&runtime, {"x"}, {Filled(90000, 1.0f)})->Wait().message(),
              "");
  }
  runtime.Stop();
  EXPECT_EQ(LinesOf(log.path).size(), 1u);  // the heading
}

// Whoever uses the first runtime may keep it while the second one starts.
TEST(runtime_autotunes_log_is_free_once_the_runtime_has_stopped) {
  TemporaryFile log;
  std::vector<std::unique_ptr<Runtime>> first(2);
  for (const bool again : {false, true}) {
    ThreadWorld world(2);
    RunRanks(2, [&](int rank) {
      auto runtime =
          std::make_unique<Runtime>(world.Open(rank), TuningOptions(log.path));
      EXPECT_EQ(runtime->Start({}).message(), "");
      EXPECT_EQ(
          Start(runtime.get(), {"x"}, {Filled(9, 1.0f)})->Wait().message(), "");
      runtime->Stop();
      if (!again) first[rank] = std::move(runtime);
    });
  }
}

TEST(runtime_autotunes_log_of_another_job_is_left_alone) {
  TemporaryFile log;
  const Options options = TuningOptions(log.path);
  const auto run = [&](const std::string& expected,
                       const std::function<void()>& meanwhile) {
    ThreadWorld world(2);
    RunRanks(2, [&](int rank) {
      Runtime runtime(world.Open(rank), options);
      EXPECT_EQ(runtime.Start({}).message(), expected);
      if (rank == 0) meanwhile();
      runtime.Stop();
    });
  };
  OtherProcess other([&](const OtherProcess::Pause& pause) { run("", pause); });
  run("HVD_AUTOTUNE_LOG='" + log.path +
          "' cannot be written on rank 0 (another job writes it, or what it "
          "has left behind): name another file, or end that job.",
      [] {});
  other.End();
  EXPECT_EQ(LinesOf(log.path).size(), 1u);  // the heading
}

TEST(runtime_autotunes_log_that_cannot_be_written_is_refused_on_every_rank) {
  const Options options = TuningOptions("/nowhere/autotune.csv");
  ThreadWorld world(3);
  RunRanks(3, [&](int rank) {
    Runtime runtime(world.Open(rank), options);
    const Status status = runtime.Start({});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "HVD_AUTOTUNE_LOG='/nowhere/autotune.csv' cannot be written on "
              "rank 0 (No such file or directory): name a file in a directory "
              "that exists and may be written to.");
  });
}

}  // namespace
}  // namespace hvd
