// SPDX-License-Identifier: Apache-2.0
// Times what a sparse allreduce computes, on one thread and without a wire:
// rows of equal id are added up, and those of two ranks are merged.
//
// Usage: sparse_rows [DIM]. Ids are Zipf(1.05) over a million in all: one field
// of 2048 lookups, and 26 fields of 2048 each. Times are medians. "grouped" and
// "summed" are of one rank's rows, "decoded", "united" and "merged" of both
// ranks'.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "cpu/id_union.h"
#include "cpu/row_groups.h"
#include "cpu/row_merge.h"
#include "transport/collectives/id_code.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kIds = 1000000;
constexpr int64_t kLookups = 2048;
constexpr int kRepeats = 101;

// The lookups of one rank: of each sample, one id of each field.
std::vector<int64_t> DrawIds(int64_t fields, uint64_t seed) {
  const int64_t rows = kIds / fields;
  std::vector<double> weights;
  double total = 0;
  for (int64_t i = 0; i < rows; ++i) {
    weights.push_back(total += std::pow(static_cast<double>(i + 1), -1.05));
  }
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> draw(0.0, total);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kLookups * fields; ++i) {
    const auto found =
        std::lower_bound(weights.begin(), weights.end(), draw(random));
    const int64_t rank = std::min(found - weights.begin(), rows - 1);
    // Hot ids do not lie together.
    ids.push_back(i % fields * rows + rank * 2654435761 % rows);
  }
  return ids;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Stopwatch {
 public:
  // Microseconds since the last call, or since it was made.
  double Lap() {
    const Clock::time_point last = std::exchange(last_, Clock::now());
    return std::chrono::duration<double>(last_ - last).count() * 1e6;
  }

 private:
  Clock::time_point last_ = Clock::now();
};

// The rows of one rank: each id once.
struct Rows {
  std::vector<int64_t> ids;
  std::vector<float> values;
};

Rows Deduplicate(const std::vector<int64_t>& ids,
                 const std::vector<float>& values, int64_t dim,
                 std::vector<double>* grouped_us,
                 std::vector<double>* summed_us) {
  Rows rows;
  rows.values.resize(values.size());  // outside the time: memory is reused
  Stopwatch watch;
  RowGroups groups =
      GroupRows(DataType::kInt64, ids.data(), static_cast<int64_t>(ids.size()));
  grouped_us->push_back(watch.Lap());
  SumGroups(DataType::kFloat32, groups, values.data(), dim, rows.values.data());
  summed_us->push_back(watch.Lap());
  rows.ids = std::move(groups.ids);
  return rows;
}

// What the ids of a rank are after they have crossed the wire.
std::vector<int64_t> SendIds(const std::vector<int64_t>& ids,
                             std::vector<double>* decoded_us) {
  const IdCode code(static_cast<int64_t>(ids.size()), kIds, DataType::kInt64);
  std::vector<std::byte> bytes(static_cast<size_t>(code.bytes()));
  code.Encode(ids.data(), bytes.data());
  std::vector<int64_t> decoded(ids.size());
  Stopwatch watch;
  if (!code.Decode(bytes.data(), decoded.data())) std::abort();
  decoded_us->push_back(watch.Lap());
  return decoded;
}

void Run(int64_t fields, int64_t dim) {
  const std::vector<int64_t> ids[] = {DrawIds(fields, 1), DrawIds(fields, 2)};
  const std::vector<float> values(ids[0].size() * static_cast<size_t>(dim),
                                  0.5f);
  std::vector<float> out(2 * values.size());
  std::vector<double> grouped_us, summed_us, decoded_us, united_us, merged_us;
  size_t own = 0, all = 0;
  for (int i = 0; i < kRepeats; ++i) {
    std::vector<Rows> ranks;
    for (const std::vector<int64_t>& list : ids) {
      ranks.push_back(Deduplicate(list, values, dim, &grouped_us, &summed_us));
    }
    const std::vector<std::vector<int64_t>> sent = {
        SendIds(ranks[0].ids, &decoded_us), SendIds(ranks[1].ids, &decoded_us)};
    std::vector<int64_t> united(sent[0].size() + sent[1].size());
    std::vector<uint32_t> places(united.size());
    std::vector<RankRows> parts;
    for (size_t rank = 0; rank < 2; ++rank) {
      parts.push_back({places.data() + rank * sent[0].size(),
                       static_cast<int64_t>(sent[rank].size()),
                       ranks[rank].values.data()});
    }
    Stopwatch watch;
    const int64_t rows =
        UniteIds({sent[0], sent[1]}, places.data(), united.data());
    united_us.push_back(watch.Lap());
    RowReduction reduction;
    reduction.averages = true;
    reduction.ranks = 2;
    watch.Lap();
    MergeRows(reduction, parts, {0, rows}, dim, out.data());
    merged_us.push_back(watch.Lap());
    own = ranks[0].ids.size();
    all = static_cast<size_t>(rows);
  }
  std::printf("%6zu %5lld %7zu %7zu %9.0f %9.0f %9.0f %9.0f %9.0f\n",
              ids[0].size(), static_cast<long long>(dim), own, all,
              Median(grouped_us), Median(summed_us), 2 * Median(decoded_us),
              Median(united_us), Median(merged_us));
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  const int64_t dim = argc > 1 ? std::atoll(argv[1]) : 16;
  if (dim < 1) return 2;
  std::printf("%6s %5s %7s %7s %9s %9s %9s %9s %9s\n", "rows", "dim", "ids",
              "of both", "grouped", "summed", "decoded", "united", "merged");
  for (int64_t fields : {1, 26}) hvd::Run(fields, dim);
  return 0;
}
