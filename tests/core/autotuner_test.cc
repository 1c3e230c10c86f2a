// SPDX-License-Identifier: Apache-2.0
// Autotuner: rounds, samples and their score, under a clock of the test's.
#include "core/control/autotuner.h"

#include <string>

#include "harness.h"

namespace hvd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = Autotuner::Clock;
using Kind = Autotuner::Kind;

Autotuner::Config ExampleConfig() {
  Autotuner::Config config;
  config.start = {65536, 32768, 4};
  config.most_chunk_bytes = 1 << 20;
  config.warmup_samples = 1;
  config.rounds_per_sample = 3;
  config.most_samples = 40;
  return config;
}

// Plays the leader: steps of tensors. Each tensor is agreed on at some time,
// and all have travelled at another.
class Job {
 public:
  explicit Job(const Autotuner::Config& config)
      : tuning(config.start),
        tuner(config, [this](const Autotuner::Sample& sample) {
          samples.push_back(sample);
        }) {}

  // Tensors of 1 MB. The wire takes `on_wire`, the rest of the step `beside`.
  void Step(int tensors, Clock::duration on_wire,
            Clock::duration beside = milliseconds(10),
            const std::string& prefix = "gradient") {
    ++batch;
    for (int i = 0; i < tensors; ++i) {
      tuner.Agreed({prefix + std::to_string(i), 0}, batch, 1000000, now);
      if (auto change = tuner.TakeChange()) {
        tuning = *change;
        ++changes;
      }
    }
    now += on_wire;
    tuner.Travelled(batch, now);
    now += beside;
    tuner.Travelled(batch, now);  // changes nothing
    ++steps;
  }

  Clock::time_point now;
  Tuning tuning;
  uint64_t batch = 0;
  int changes = 0;
  int steps = 0;
  std::vector<Autotuner::Sample> samples;
  Autotuner tuner;
};

// Faster with more fusion, and with chunks of 128 KB.
Clock::duration WireTime(const Tuning& tuning) {
  double ms = 20;
  for (int64_t fusion = tuning.fusion_bytes; fusion < 16 << 20; fusion *= 2) {
    ms *= 1.2;
  }
  if (tuning.chunk_bytes != 128 << 10) ms *= 1.3;
  return microseconds(static_cast<int64_t>(1000 * ms));
}

TEST(autotuner_settles_on_the_best_and_then_changes_nothing) {
  Job job(ExampleConfig());
  while (!job.tuner.settled() && job.steps < 1000) {
    job.Step(10, WireTime(job.tuning));
  }
  ASSERT_TRUE(job.tuner.settled());
  job.Step(10, WireTime(job.tuning));
  EXPECT_TRUE(WireTime(job.tuning) == milliseconds(20));
  // A round more for each sample, the unused one under new values.
  EXPECT_TRUE(job.steps <= 41 * 4 + 2);
  const Autotuner::Sample& last = job.samples.back();
  EXPECT_TRUE(last.kind == Kind::kFinal && last.tuning == job.tuning);
  EXPECT_NEAR(last.mb_per_s, 10 / 0.020, 1e-6);
  const size_t count = job.samples.size();
  const int changes = job.changes;
  for (int i = 0; i < 100; ++i) job.Step(10, milliseconds(1));
  EXPECT_EQ(job.samples.size(), count);
  EXPECT_EQ(job.changes, changes);
}

TEST(autotuner_reports_every_sample_in_order) {
  Job job(ExampleConfig());
  while (!job.tuner.settled()) job.Step(10, WireTime(job.tuning));
  EXPECT_TRUE(job.samples.size() > 3);
  for (size_t i = 0; i < job.samples.size(); ++i) {
    const Autotuner::Sample& sample = job.samples[i];
    EXPECT_EQ(sample.number, i + 1);
    const bool is_last = i + 1 == job.samples.size();
    EXPECT_TRUE(sample.kind == (i == 0    ? Kind::kWarmup
                                : is_last ? Kind::kFinal
                                          : Kind::kSample));
    EXPECT_EQ(sample.rounds, is_last ? 0 : 3);
    const double s =
        std::chrono::duration<double>(WireTime(sample.tuning)).count();
    EXPECT_NEAR(sample.mb_per_s, 10 / s, 1e-6);
  }
  EXPECT_TRUE(job.samples[0].tuning == ExampleConfig().start);
  EXPECT_TRUE(job.samples[1].tuning == ExampleConfig().start);
}

TEST(autotuner_counts_the_time_on_the_wire_only) {
  Job job(ExampleConfig());
  // What the ranks compute meanwhile may take any time.
  for (int i = 0; job.samples.empty(); ++i) {
    job.Step(10, milliseconds(20), milliseconds(1 + 100 * (i % 7)));
  }
  EXPECT_NEAR(job.samples[0].mb_per_s, 10 / 0.020, 1e-6);
}

TEST(autotuner_splits_the_time_of_steps_that_overlap) {
  Autotuner::Config config = ExampleConfig();
  Job job(config);
  // The wire is never idle.
  while (job.samples.empty()) {
    for (int i = 0; i < 10; ++i) {
      job.tuner.Agreed({std::to_string(i), 0}, 1, 1000000, job.now);
      job.now += milliseconds(2);
    }
  }
  EXPECT_NEAR(job.samples[0].mb_per_s, 10 / 0.020, 1e-6);
}

TEST(autotuner_is_not_misled_by_small_rounds_between_steps) {
  Job job(ExampleConfig());
  Autotuner::Config config = ExampleConfig();
  config.rounds_per_sample = 6;
  Job mixed(config);
  while (mixed.samples.empty()) {
    mixed.Step(10, milliseconds(20));
    // A metric, twice: small, and much slower for its size.
    for (int i = 0; i < 2; ++i) {
      mixed.tuner.Agreed({"metric", 0}, ++mixed.batch, 4, mixed.now);
      mixed.now += microseconds(300);
      mixed.tuner.Travelled(mixed.batch, mixed.now);
    }
  }
  EXPECT_NEAR(mixed.samples[0].mb_per_s, 10 / 0.020, 10);
}

TEST(autotuner_samples_of_short_steps_last_a_while) {
  Job job(ExampleConfig());
  while (job.samples.empty()) {
    job.Step(1, microseconds(100), microseconds(100));
  }
  EXPECT_TRUE(job.samples[0].rounds >= 100);
}

TEST(autotuner_survives_names_that_never_come_again) {
  Job job(ExampleConfig());
  for (int i = 0; i < 70000; ++i) {
    job.Step(1, microseconds(10), microseconds(10), std::to_string(i) + "/");
  }
  EXPECT_TRUE(job.samples.empty());  // the first round is the one dropped
}

// An iteration of a loop in a graph. `first` is its first batch.
void Iterate(Job* job, uint64_t iteration, uint64_t first) {
  constexpr uint64_t kFrame = 0xabcd0000;
  for (uint64_t i = 0; i < 10; ++i) {
    job->tuner.Agreed(
        {"gradient" + std::to_string(i), kFrame << 32 | iteration}, first + i,
        1000000, job->now);
  }
}

void EndIteration(Job* job, uint64_t first) {
  for (uint64_t i = 0; i < 10; ++i) job->tuner.Travelled(first + i, job->now);
}

TEST(autotuner_takes_iterations_of_a_loop_for_steps) {
  Job job(ExampleConfig());
  uint64_t batch = 1;
  for (int call = 0; call < 3; ++call) {
    // They are counted from 0 in each call of the function.
    for (uint64_t iteration = 0; iteration < 300; ++iteration, batch += 10) {
      Iterate(&job, iteration, batch);
      job.now += milliseconds(20);
      EndIteration(&job, batch);
      job.now += milliseconds(10);
    }
  }
  EXPECT_TRUE(job.tuner.settled());
  for (const Autotuner::Sample& sample : job.samples) {
    EXPECT_EQ(sample.rounds, sample.kind == Kind::kFinal ? 0 : 3);
    EXPECT_NEAR(sample.mb_per_s, 10 / 0.020, 1e-6);
  }
}

// They share the wire, so the speed of one says nothing.
TEST(autotuner_keeps_iterations_that_travel_together_in_a_round) {
  Job job(ExampleConfig());
  uint64_t batch = 1;
  for (uint64_t iteration = 0; job.samples.size() < 2; iteration += 4) {
    const uint64_t first = batch;
    for (uint64_t i = 0; i < 4; ++i, batch += 10) {
      Iterate(&job, iteration + i, batch);
      job.now += milliseconds(1);
    }
    job.now += milliseconds(20);
    for (uint64_t i = 0; i < 4; ++i) EndIteration(&job, first + 10 * i);
    ASSERT_TRUE(iteration < 1000);
  }
  EXPECT_NEAR(job.samples[0].mb_per_s, 40 / 0.024, 1e-6);
  EXPECT_NEAR(job.samples[1].mb_per_s, 40 / 0.024, 1e-6);
}

// As one ends, another one begins: there is always something on its way.
TEST(autotuner_splits_the_time_of_iterations_that_overlap) {
  Job job(ExampleConfig());
  constexpr uint64_t kAtATime = 4;
  for (uint64_t iteration = 0; job.samples.size() < 2; ++iteration) {
    if (iteration >= kAtATime) {
      EndIteration(&job, 10 * (iteration - kAtATime) + 1);
    }
    Iterate(&job, iteration, 10 * iteration + 1);
    job.now += milliseconds(10);
    ASSERT_TRUE(iteration < 1000);
  }
  EXPECT_NEAR(job.samples[0].mb_per_s, 10 / 0.010, 1e-6);
  EXPECT_NEAR(job.samples[1].mb_per_s, 10 / 0.010, 1e-6);
}

TEST(autotuner_ignores_steps_without_bytes) {
  Job job(ExampleConfig());
  for (int i = 0; i < 50; ++i) {
    job.tuner.Agreed({"empty", 0}, ++job.batch, 0, job.now);
    job.now += milliseconds(50);
    job.tuner.Travelled(job.batch, job.now);
  }
  EXPECT_TRUE(job.samples.empty());
}

}  // namespace
}  // namespace hvd
