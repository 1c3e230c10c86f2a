// SPDX-License-Identifier: Apache-2.0
// Unites ids pair by pair, and adds rows tile by tile.
#include "cpu/row_merge.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "cpu/element_loops.h"
#include "cpu/row_loops.h"

namespace hvd {
namespace {

using element_loops::Averaging;
using element_loops::Compute;
using element_loops::Convert;
using element_loops::Divide;
using element_loops::Scale;
using element_loops::WithType;
using row_loops::AddRow;
using row_loops::kNothing;

// Ends a list, of which the first `done` ids are united already.
void AppendRest(const std::vector<int64_t>& list, size_t done, size_t count,
                IdUnion* united, std::vector<uint32_t>* places) {
  std::copy(list.begin() + static_cast<std::ptrdiff_t>(done), list.end(),
            united->ids.begin() + static_cast<std::ptrdiff_t>(count));
  std::iota(places->begin() + static_cast<std::ptrdiff_t>(done), places->end(),
            static_cast<uint32_t>(count));
}

// Without a branch for each id: random ones would be mispredicted.
IdUnion UnionOfTwo(const std::vector<int64_t>& a,
                   const std::vector<int64_t>& b) {
  IdUnion united;
  united.ids.resize(a.size() + b.size());
  united.places.emplace_back(a.size());
  united.places.emplace_back(b.size());
  int64_t* const ids = united.ids.data();
  uint32_t* const of_a = united.places[0].data();
  uint32_t* const of_b = united.places[1].data();
  size_t i = 0, j = 0, count = 0;
  while (i < a.size() && j < b.size()) {
    const int64_t from_a = a[i], from_b = b[j];
    // One of the two places is right. The other is written again.
    of_a[i] = of_b[j] = static_cast<uint32_t>(count);
    ids[count++] = std::min(from_a, from_b);
    i += from_a <= from_b;
    j += from_b <= from_a;
  }
  AppendRest(a, i, count, &united, &united.places[0]);
  AppendRest(b, j, count, &united, &united.places[1]);
  united.ids.resize(count + (a.size() - i) + (b.size() - j));
  return united;
}

IdUnion UnionOfOne(const std::vector<int64_t>& list) {
  IdUnion united{list, {std::vector<uint32_t>(list.size())}};
  std::iota(united.places[0].begin(), united.places[0].end(), 0);
  return united;
}

// So many elements stay in the first-level cache.
constexpr int64_t kTile = 1024;

// Sums of T, formed in C.
template <typename T, typename C>
class RowMerger {
 public:
  RowMerger(const RowReduction& reduction, const std::vector<RankRows>& parts,
            int64_t row_count)
      : reduction_(reduction), parts_(parts), row_count_(row_count) {}

  void Merge(RowRange united, T* out) const {
    const int64_t step = std::max(kTile / row_count_, int64_t{1});
    std::vector<int64_t> begins(parts_.size(), 0), ends(parts_.size());
    for (int64_t row = united.begin; row < united.end; row += step) {
      const RowRange tile{row, std::min(row + step, united.end)};
      for (int64_t column = 0; column < row_count_; column += kTile) {
        const int64_t columns = std::min(kTile, row_count_ - column);
        const int64_t elements = tile.size() * columns;
        T* const target = out + (row - united.begin) * row_count_ + column;
        if constexpr (std::is_same_v<T, C>) {
          AddTile(tile, column, columns, begins, &ends, target);
          Finish(target, elements);
        } else {
          C sums[kTile];
          AddTile(tile, column, columns, begins, &ends, sums);
          Finish(sums, elements);
          Convert(sums, target, elements);
        }
      }
      begins = ends;
    }
  }

 private:
  // A tile has some whole rows, or some columns of one row.
  void AddTile(RowRange tile, int64_t column, int64_t columns,
               const std::vector<int64_t>& begins, std::vector<int64_t>* ends,
               C* sums) const {
    std::fill(sums, sums + tile.size() * columns, kNothing<C>);
    for (size_t p = 0; p < parts_.size(); ++p) {
      const RankRows& part = parts_[p];
      const T* const values = static_cast<const T*>(part.values) + column;
      int64_t at = begins[p];
      for (; at < part.count && part.places[at] < tile.end; ++at) {
        AddRow(values + at * row_count_, columns,
               sums + (part.places[at] - tile.begin) * columns);
      }
      (*ends)[p] = at;
    }
  }

  void Finish(C* sums, int64_t count) const {
    if (reduction_.averages) Divide(sums, count, reduction_.ranks);
    if (reduction_.postscale != 1.0) {
      Scale(sums, sums, count, reduction_.postscale);
    }
  }

  const RowReduction& reduction_;
  const std::vector<RankRows>& parts_;
  const int64_t row_count_;
};

}  // namespace

IdUnion UnionOfIds(const std::vector<std::vector<int64_t>>& lists) {
  if (lists.empty()) return {};
  if (lists.size() == 1) return UnionOfOne(lists[0]);
  if (lists.size() == 2) return UnionOfTwo(lists[0], lists[1]);
  std::vector<IdUnion> pairs;
  std::vector<std::vector<int64_t>> merged;
  for (size_t i = 0; i < lists.size(); i += 2) {
    pairs.push_back(i + 1 < lists.size() ? UnionOfTwo(lists[i], lists[i + 1])
                                         : UnionOfOne(lists[i]));
    merged.push_back(std::move(pairs.back().ids));
  }
  const IdUnion of_pairs = UnionOfIds(merged);
  IdUnion united{of_pairs.ids, {}};
  for (size_t pair = 0; pair < pairs.size(); ++pair) {
    for (std::vector<uint32_t>& places : pairs[pair].places) {
      for (uint32_t& place : places) place = of_pairs.places[pair][place];
      united.places.push_back(std::move(places));
    }
  }
  return united;
}

void MergeRows(const RowReduction& reduction,
               const std::vector<RankRows>& parts, RowRange united,
               int64_t row_count, void* out, VectorUnit unit) {
  if (united.size() == 0 || row_count == 0) return;
  RunWith(unit, [&] {
    WithType(reduction.dtype, [&](auto type) {
      using T = decltype(type);
      T* const target = static_cast<T*>(out);
      if (reduction.averages) {
        RowMerger<T, Averaging<T>>(reduction, parts, row_count)
            .Merge(united, target);
      } else {
        RowMerger<T, Compute<T>>(reduction, parts, row_count)
            .Merge(united, target);
      }
    });
  });
}

}  // namespace hvd
