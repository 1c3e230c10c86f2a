// SPDX-License-Identifier: Apache-2.0
// Sorts ids by radix, and adds rows block by block.
#include "cpu/sparse_rows.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "cpu/element_loops.h"

namespace hvd {
namespace {

using element_loops::Add;
using element_loops::Averaging;
using element_loops::Compute;
using element_loops::Convert;
using element_loops::Divide;
using element_loops::Scale;
using element_loops::WithType;

template <typename Visit>
void WithIdType(DataType id_type, Visit visit) {
  if (id_type == DataType::kInt32) return visit(int32_t());
  visit(int64_t());
}

// --- Grouping ---

struct IdRange {
  int64_t least = 0;
  uint64_t width = 0;  // the greatest id - the least
  bool is_ascending = true;
};

template <typename Id>
IdRange RangeOf(const Id* ids, int64_t count) {
  IdRange range;
  if (count == 0) return range;
  Id least = ids[0], greatest = ids[0];
  bool descends = false;
  for (int64_t i = 1; i < count; ++i) {
    least = std::min(least, ids[i]);
    greatest = std::max(greatest, ids[i]);
    descends |= ids[i] <= ids[i - 1];
  }
  range.least = least;
  range.width = static_cast<uint64_t>(greatest) - static_cast<uint64_t>(least);
  range.is_ascending = !descends;
  return range;
}

// An id, counted from the least, and where it stands. The narrow kind is one
// number, and moves as fast as that.
struct NarrowKey {
  uint32_t id;
  uint32_t position;
};
struct WideKey {
  uint64_t id;
  uint32_t position;
};

int BitsOf(uint64_t number) {
  return number == 0 ? 0 : 64 - __builtin_clzll(number);
}

// Digits have so many bits at most: their counts stay in the first-level cache.
constexpr int kMostDigitBits = 11;

// Sorts by id. Keys of one id stay in their order. One pass for each digit.
template <typename Key>
void RadixSort(std::vector<Key>* keys, int bits) {
  if (bits == 0 || keys->size() < 2) return;
  const int passes = (bits + kMostDigitBits - 1) / kMostDigitBits;
  const int digit_bits = (bits + passes - 1) / passes;
  const uint64_t mask = (uint64_t{1} << digit_bits) - 1;
  std::vector<uint32_t> begins(static_cast<size_t>(mask) + 1);
  std::vector<Key> sorted(keys->size());
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = pass * digit_bits;
    std::fill(begins.begin(), begins.end(), 0);
    for (const Key& key : *keys) ++begins[key.id >> shift & mask];
    uint32_t begin = 0;
    for (uint32_t& at : begins) begin += std::exchange(at, begin);
    for (const Key& key : *keys) {
      sorted[begins[key.id >> shift & mask]++] = key;
    }
    keys->swap(sorted);
  }
}

template <typename Key, typename Id>
void GroupBySorting(const Id* ids, int64_t count, const IdRange& range,
                    RowGroups* groups) {
  std::vector<Key> keys(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    keys[i].id = static_cast<decltype(Key::id)>(
        static_cast<uint64_t>(ids[i]) - static_cast<uint64_t>(range.least));
    keys[i].position = static_cast<uint32_t>(i);
  }
  RadixSort(&keys, BitsOf(range.width));
  groups->positions.resize(keys.size());
  groups->ids.reserve(keys.size());
  groups->ends.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    groups->positions[i] = keys[i].position;
    if (i + 1 < keys.size() && keys[i + 1].id == keys[i].id) continue;
    groups->ids.push_back(
        static_cast<int64_t>(static_cast<uint64_t>(range.least) + keys[i].id));
    groups->ends.push_back(static_cast<uint32_t>(i + 1));
  }
}

// --- Rows ---

// So many elements are worked on in registers.
constexpr int64_t kBlock = 16;
// So many stay in the first-level cache.
constexpr int64_t kTile = 1024;
// Rows that are read this much later are fetched now.
constexpr size_t kAhead = 8;

template <typename C, typename T>
C Widened(T value) {
  if constexpr (std::is_same_v<C, T>) {
    return value;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<C>(value);
  } else {
    return ConvertFloat<C>(value);
  }
}

// sum = row, or sum = sum + row. Blocks have a constant length, so that their
// loops become a few vector instructions.
template <typename T, typename C>
void AddRow(const T* row, bool is_first, int64_t count, C* sum) {
  const auto add = [&](int64_t begin, int64_t length) {
    const T* const in = row + begin;
    C* const out = sum + begin;
    if (is_first) {
#pragma GCC ivdep
      for (int64_t i = 0; i < length; ++i) out[i] = Widened<C>(in[i]);
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < length; ++i) {
        out[i] = Add()(out[i], Widened<C>(in[i]));
      }
    }
  };
  int64_t at = 0;
  for (; at + kBlock <= count; at += kBlock) add(at, kBlock);
  if (at < count) add(at, count - at);
}

template <typename T>
void SumGroupsOf(const RowGroups& groups, const T* values, int64_t row_count,
                 T* out) {
  using C = Compute<T>;
  C sum[kTile];
  size_t at = 0;
  for (size_t group = 0; group < groups.ids.size(); ++group) {
    const size_t end = groups.ends[group];
    T* const target = out + static_cast<int64_t>(group) * row_count;
    for (int64_t column = 0; column < row_count; column += kTile) {
      const int64_t length = std::min(kTile, row_count - column);
      for (size_t i = at; i < end; ++i) {
        if (i + kAhead < groups.positions.size()) {
          __builtin_prefetch(values + groups.positions[i + kAhead] * row_count +
                             column);
        }
        const T* const row = values + groups.positions[i] * row_count + column;
        if constexpr (std::is_same_v<T, C>) {
          AddRow(row, i == at, length, target + column);
        } else {
          AddRow(row, i == at, length, sum);
        }
      }
      if constexpr (!std::is_same_v<T, C>) {
        Convert(sum, target + column, length);
      }
    }
    at = end;
  }
}

// Two lists, without a branch for each id: random ones would be mispredicted.
std::vector<int64_t> UnionOfTwo(const std::vector<int64_t>& a,
                                const std::vector<int64_t>& b) {
  std::vector<int64_t> ids(a.size() + b.size());
  size_t i = 0, j = 0, count = 0;
  while (i < a.size() && j < b.size()) {
    const int64_t from_a = a[i], from_b = b[j];
    ids[count++] = std::min(from_a, from_b);
    i += from_a <= from_b;
    j += from_b <= from_a;
  }
  ids.resize(count);
  ids.insert(ids.end(), a.begin() + static_cast<std::ptrdiff_t>(i), a.end());
  ids.insert(ids.end(), b.begin() + static_cast<std::ptrdiff_t>(j), b.end());
  return ids;
}

// Sums of T, formed in C.
template <typename T, typename C>
class RowMerger {
 public:
  RowMerger(const RowReduction& reduction, const std::vector<RankRows>& parts,
            int64_t row_count)
      : reduction_(reduction), parts_(parts), row_count_(row_count) {}

  void Merge(const int64_t* ids, int64_t count, T* out) {
    const int64_t step = std::max(kTile / row_count_, int64_t{1});
    std::vector<int64_t> begins(parts_.size(), 0), next;
    for (int64_t row = 0; row < count; row += step) {
      const int64_t rows = std::min(step, count - row);
      for (int64_t column = 0; column < row_count_; column += kTile) {
        const int64_t columns = std::min(kTile, row_count_ - column);
        next = begins;
        T* const target = out + row * row_count_ + column;
        if constexpr (std::is_same_v<T, C>) {
          AddTile(ids + row, rows, column, columns, &next, target);
          Finish(target, rows * columns);
        } else {
          C sums[kTile];
          AddTile(ids + row, rows, column, columns, &next, sums);
          Finish(sums, rows * columns);
          Convert(sums, target, rows * columns);
        }
      }
      begins = next;
    }
  }

 private:
  // A tile has some whole rows, or some columns of one row.
  void AddTile(const int64_t* ids, int64_t rows, int64_t column,
               int64_t columns, std::vector<int64_t>* next, C* sums) const {
    for (int64_t row = 0; row < rows; ++row) {
      bool is_first = true;
      for (size_t p = 0; p < parts_.size(); ++p) {
        const RankRows& part = parts_[p];
        int64_t& at = (*next)[p];
        if (at == part.count || part.ids[at] != ids[row]) continue;
        AddRow(static_cast<const T*>(part.values) + at * row_count_ + column,
               is_first, columns, sums + row * columns);
        is_first = false;
        ++at;
      }
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

int64_t FindIdOutside(DataType id_type, const void* ids, int64_t count,
                      int64_t rows) {
  int64_t found = -1;
  WithIdType(id_type, [&](auto type) {
    using Id = decltype(type);
    const auto* const list = static_cast<const Id*>(ids);
    // As unsigned numbers, negative ids are larger than any limit.
    const uint64_t limit =
        rows < 0 ? uint64_t{1} << 63 : static_cast<uint64_t>(rows);
    const auto outside = [limit](Id id) {
      return static_cast<uint64_t>(static_cast<int64_t>(id)) >= limit;
    };
    bool any = false;
    for (int64_t i = 0; i < count; ++i) any |= outside(list[i]);
    if (any) found = std::find_if(list, list + count, outside) - list;
  });
  return found;
}

RowGroups GroupRows(DataType id_type, const void* ids, int64_t count) {
  RowGroups groups;
  WithIdType(id_type, [&](auto type) {
    using Id = decltype(type);
    const auto* const list = static_cast<const Id*>(ids);
    const IdRange range = RangeOf(list, count);
    if (range.is_ascending) {
      groups.ids.assign(list, list + count);
    } else if (range.width <= std::numeric_limits<uint32_t>::max()) {
      GroupBySorting<NarrowKey>(list, count, range, &groups);
    } else {
      GroupBySorting<WideKey>(list, count, range, &groups);
    }
  });
  return groups;
}

void SumGroups(DataType dtype, const RowGroups& groups, const void* values,
               int64_t row_count, void* out, VectorUnit unit) {
  const auto rows = static_cast<int64_t>(groups.ids.size());
  if (rows == 0 || row_count == 0) return;
  if (groups.is_list()) {
    std::memcpy(out, values,
                static_cast<size_t>(rows * row_count) * SizeOf(dtype));
    return;
  }
  RunWith(unit, [&] {
    WithType(dtype, [&](auto type) {
      using T = decltype(type);
      SumGroupsOf(groups, static_cast<const T*>(values), row_count,
                  static_cast<T*>(out));
    });
  });
}

std::vector<int64_t> UnionOfIds(
    const std::vector<std::vector<int64_t>>& lists) {
  if (lists.empty()) return {};
  if (lists.size() == 1) return lists[0];
  std::vector<std::vector<int64_t>> merged;
  for (size_t i = 0; i < lists.size(); i += 2) {
    merged.push_back(i + 1 < lists.size() ? UnionOfTwo(lists[i], lists[i + 1])
                                          : lists[i]);
  }
  return UnionOfIds(merged);
}

void MergeRows(const RowReduction& reduction,
               const std::vector<RankRows>& parts, const int64_t* ids,
               int64_t count, int64_t row_count, void* out, VectorUnit unit) {
  if (count == 0 || row_count == 0) return;
  RunWith(unit, [&] {
    WithType(reduction.dtype, [&](auto type) {
      using T = decltype(type);
      T* const target = static_cast<T*>(out);
      if (reduction.averages) {
        RowMerger<T, Averaging<T>>(reduction, parts, row_count)
            .Merge(ids, count, target);
      } else {
        RowMerger<T, Compute<T>>(reduction, parts, row_count)
            .Merge(ids, count, target);
      }
    });
  });
}

}  // namespace hvd
