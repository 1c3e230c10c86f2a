// SPDX-License-Identifier: Apache-2.0
// TuningSearch: where it ends on known surfaces, quiet and noisy ones.
#include "core/control/tuning_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "harness.h"

namespace hvd {
namespace {

constexpr int64_t kMostChunkBytes = 1 << 20;
constexpr int64_t kSamples = 40;
const Tuning kFarStart{65536, 32768, 4};

using Surface = std::function<double(const Tuning&)>;

double Log2(int64_t value) { return std::log2(static_cast<double>(value)); }

// A cost for each batch and each chunk, and chunks that fall out of the cache.
double WireSpeed(const Tuning& tuning) {
  constexpr double kBytes = 100e6, kTensors = 160;
  const double batches =
      std::max(3.0, std::min(kTensors, kBytes / tuning.fusion_bytes));
  const double chunks = kBytes / tuning.chunk_bytes;
  double us = 20000 + 60 * batches + 4 * chunks;
  us += 0.004 * std::max<double>(0, tuning.chunk_bytes - (256 << 10));
  us += tuning.batches_in_flight == 1 ? 3000 : 100 * tuning.batches_in_flight;
  return kBytes / us;
}

// One peak, far from the start on every axis.
double Ridge(const Tuning& tuning) {
  const double fusion = Log2(tuning.fusion_bytes) - 24;
  const double chunk = Log2(tuning.chunk_bytes) - 18;
  const double in_flight = Log2(tuning.batches_in_flight) - 1;
  // The best chunk depends on the fusion.
  const double skewed = chunk - 0.2 * fusion;
  return 1000 / (1 + 0.1 * fusion * fusion + 0.2 * skewed * skewed +
                 0.05 * in_flight * in_flight);
}

double Flat(const Tuning&) { return 500; }

double BestOf(const Surface& surface) {
  double best = 0;
  for (int64_t fusion = 64 << 10; fusion <= 128 << 20; fusion *= 2) {
    for (int64_t chunk = 32 << 10; chunk <= kMostChunkBytes; chunk *= 2) {
      for (int64_t in_flight = 1; in_flight <= 16; in_flight *= 2) {
        best = std::max(best, surface({fusion, chunk, in_flight}));
      }
    }
  }
  return best;
}

// Runs a search to its end; `noise` is the standard deviation of a sample, as a
// part of it. Returns the samples.
std::vector<Tuning> Run(TuningSearch* search, const Surface& surface,
                        double noise, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, noise);
  std::vector<Tuning> samples;
  while (std::optional<Tuning> next = search->Next()) {
    samples.push_back(*next);
    const double factor = std::max(0.1, 1 + normal(random));
    search->Report(surface(*next) * factor);
    if (samples.size() > 1000) break;
  }
  return samples;
}

TEST(tuning_search_ends_at_the_best_of_a_quiet_surface) {
  for (const Surface& surface : {Surface(WireSpeed), Surface(Ridge)}) {
    for (const Tuning& start :
         {kFarStart, Tuning{128 << 20, 1 << 20, 16}, Tuning{0, 5000, 3},
          Tuning{int64_t{1} << 40, 100000, 128}}) {
      TuningSearch search(start, kMostChunkBytes, kSamples);
      const auto samples = Run(&search, surface, 0, 1);
      EXPECT_TRUE(samples.size() <= static_cast<size_t>(kSamples));
      EXPECT_TRUE(surface(search.best()) >= 0.95 * BestOf(surface));
      EXPECT_EQ(search.best_score(), surface(search.best()));
    }
  }
}

TEST(tuning_search_ends_near_the_best_of_a_noisy_surface) {
  for (const Surface& surface : {Surface(WireSpeed), Surface(Ridge)}) {
    int near = 0;
    constexpr int kRuns = 100;
    for (unsigned seed = 0; seed < kRuns; ++seed) {
      TuningSearch search(kFarStart, kMostChunkBytes, kSamples);
      Run(&search, surface, 0.04, seed);
      near += surface(search.best()) >= 0.9 * BestOf(surface);
    }
    EXPECT_TRUE(near >= 0.9 * kRuns);
  }
}

TEST(tuning_search_is_deterministic) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    TuningSearch one(kFarStart, kMostChunkBytes, kSamples);
    TuningSearch other(kFarStart, kMostChunkBytes, kSamples);
    EXPECT_TRUE(Run(&one, Ridge, 0.1, seed) == Run(&other, Ridge, 0.1, seed));
    EXPECT_TRUE(one.best() == other.best());
  }
}

TEST(tuning_search_takes_few_samples_and_never_more_than_allowed) {
  for (const Surface& surface :
       {Surface(WireSpeed), Surface(Ridge), Surface(Flat)}) {
    TuningSearch search(kFarStart, kMostChunkBytes, 1000);
    EXPECT_TRUE(Run(&search, surface, 0, 1).size() <= 40);
    for (int64_t most : {1, 2, 3, 7, 12}) {
      TuningSearch bounded(kFarStart, kMostChunkBytes, most);
      EXPECT_TRUE(Run(&bounded, surface, 0.2, 1).size() <=
                  static_cast<size_t>(most));
    }
  }
}

TEST(tuning_search_stays_where_nothing_is_better) {
  for (const Tuning& start : {kFarStart, Tuning{0, 0, 1}}) {
    TuningSearch search(start, kMostChunkBytes, kSamples);
    for (const Tuning& sample : Run(&search, Flat, 0, 1)) {
      // Without chunks of the transport's there is nothing to try.
      EXPECT_EQ(sample.chunk_bytes == 0, start.chunk_bytes == 0);
    }
    EXPECT_TRUE(search.best() == start);
  }
}

TEST(tuning_search_keeps_within_what_there_is_memory_for) {
  TuningSearch search(kFarStart, 128 << 10, kSamples);
  const auto larger_is_better = [](const Tuning& tuning) {
    return static_cast<double>(tuning.chunk_bytes);
  };
  for (const Tuning& sample : Run(&search, larger_is_better, 0, 1)) {
    EXPECT_TRUE(sample.chunk_bytes <= 128 << 10);
  }
  EXPECT_EQ(search.best().chunk_bytes, 128 << 10);
}

TEST(tuning_search_measures_the_best_again_and_drops_a_lucky_one) {
  TuningSearch search(kFarStart, kMostChunkBytes, kSamples);
  // The first look at one place shows more than it has.
  int looks = 0;
  while (std::optional<Tuning> next = search.Next()) {
    double score = Ridge(*next);
    if (*next == Tuning{8 << 20, 256 << 10, 2}) score *= ++looks == 1 ? 1.2 : 1;
    search.Report(score);
  }
  EXPECT_EQ(looks, 3);
  EXPECT_TRUE(Ridge(search.best()) >= 0.97 * BestOf(Ridge));
}

// However far ahead of all others it is.
TEST(tuning_search_measures_a_sole_leader_again) {
  for (int lucky = 1; lucky <= 12; ++lucky) {
    TuningSearch search(kFarStart, kMostChunkBytes, kSamples);
    std::optional<Tuning> leader;
    int samples = 0, looks = 0;
    while (std::optional<Tuning> next = search.Next()) {
      const bool is_lucky = ++samples == lucky;
      if (is_lucky) leader = next;
      looks += leader == next ? 1 : 0;
      search.Report(is_lucky ? 800 : Flat(*next));
    }
    EXPECT_EQ(looks, 3);
    EXPECT_EQ(search.best_score(), 500);
  }
}

}  // namespace
}  // namespace hvd
