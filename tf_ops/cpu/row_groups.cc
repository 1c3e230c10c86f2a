// SPDX-License-Identifier: Apache-2.0
// Numbers ids by a bitmap, or by sorting. Adds rows in the order of the list.
#include "cpu/row_groups.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "cpu/element_loops.h"
#include "cpu/row_loops.h"

namespace hvd {
namespace {

using element_loops::Compute;
using element_loops::Convert;
using element_loops::WithType;
using row_loops::AddRow;
using row_loops::kNothing;
using row_loops::WithLength;

template <typename Visit>
void WithIdType(DataType id_type, Visit visit) {
  if (id_type == DataType::kInt32) return visit(int32_t());
  visit(int64_t());
}

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
  uint32_t descents = 0;
  for (int64_t i = 1; i < count; ++i) {
    least = std::min(least, ids[i]);
    greatest = std::max(greatest, ids[i]);
    descents |= ids[i] <= ids[i - 1] ? 1 : 0;
  }
  range.least = least;
  range.width = static_cast<uint64_t>(greatest) - static_cast<uint64_t>(least);
  range.is_ascending = descents == 0;
  return range;
}

// --- By a bitmap, where ids are near to each other ---

// For so many words for each id, going through them takes less time than
// sorting the ids.
constexpr uint64_t kMostWordsPerId = 2;

// Which numbers there are, and how many of them are below one. First Add() of
// all, then Count(), then PlaceOf().
class Bitmap {
 public:
  explicit Bitmap(uint64_t greatest)
      : words_(static_cast<size_t>(greatest / 64) + 1) {}

  void Add(uint64_t number) {
    words_[number / 64].bits |= uint64_t{1} << number % 64;
  }

  uint32_t Count() {
    uint32_t count = 0;
    for (Word& word : words_) {
      word.below = count;
      count += static_cast<uint32_t>(__builtin_popcountll(word.bits));
    }
    return count;
  }

  uint32_t PlaceOf(uint64_t number) const {
    const Word& word = words_[number / 64];
    const uint64_t lower = (uint64_t{1} << number % 64) - 1;
    return static_cast<uint32_t>(word.below) +
           static_cast<uint32_t>(__builtin_popcountll(word.bits & lower));
  }

 private:
  struct Word {
    uint64_t bits = 0;
    uint64_t below = 0;  // how many numbers are below this word's
  };
  std::vector<Word> words_;
};

// How far an id is above the least one. It may be further than a signed number
// goes.
template <typename Id>
uint64_t Above(Id id, const IdRange& range) {
  return static_cast<uint64_t>(id) - static_cast<uint64_t>(range.least);
}

template <typename Id>
void GroupByBits(const Id* ids, int64_t count, const IdRange& range,
                 RowGroups* groups) {
  // A machine with that vector unit also has instructions that count bits,
  // which Bitmap uses.
  RunWith(BestVectorUnit(), [&] {
    Bitmap bitmap(range.width);
    for (int64_t i = 0; i < count; ++i) bitmap.Add(Above(ids[i], range));
    groups->ids.resize(bitmap.Count());
    groups->places.resize(static_cast<size_t>(count));
    int64_t* const found = groups->ids.data();
    uint32_t* const places = groups->places.data();
    for (int64_t i = 0; i < count; ++i) {
      // Going through the words would be mispredicted at each.
      const uint32_t place = bitmap.PlaceOf(Above(ids[i], range));
      places[i] = place;
      found[place] = ids[i];
    }
  });
}

// --- By sorting ---

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

// Sorts by id, in one pass for each digit.
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
    keys[i].id = static_cast<decltype(Key::id)>(Above(ids[i], range));
    keys[i].position = static_cast<uint32_t>(i);
  }
  RadixSort(&keys, BitsOf(range.width));
  groups->places.resize(keys.size());
  groups->ids.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i == 0 || keys[i].id != keys[i - 1].id) {
      groups->ids.push_back(static_cast<int64_t>(
          static_cast<uint64_t>(range.least) + keys[i].id));
    }
    groups->places[keys[i].position] =
        static_cast<uint32_t>(groups->ids.size() - 1);
  }
}

// --- Rows ---

// Rows that are added to so much later are fetched now.
constexpr size_t kAhead = 8;

template <typename T, typename C>
void AddGroups(const std::vector<uint32_t>& places, const T* values,
               int64_t row_count, C* sums) {
  const size_t rows = places.size();
  WithLength(row_count, [&](auto length) {
    for (size_t row = 0; row < rows; ++row) {
      const size_t ahead = std::min(row + kAhead, rows - 1);
      __builtin_prefetch(sums + places[ahead] * length, 1);
      AddRow(values + static_cast<int64_t>(row) * length, length,
             sums + places[row] * length);
    }
  });
}

// Each group is one row.
template <typename T>
void PlaceRows(const std::vector<uint32_t>& places, const T* values,
               int64_t row_count, T* out) {
  WithLength(row_count, [&](auto length) {
    const auto bytes = static_cast<size_t>(length) * sizeof(T);
    for (uint32_t place : places) {
      std::memcpy(out + place * length, values, bytes);
      values += length;
    }
  });
}

template <typename T>
void SumGroupsOf(const RowGroups& groups, const T* values, int64_t row_count,
                 T* out) {
  using C = Compute<T>;
  if (groups.ids.size() == groups.places.size()) {
    return PlaceRows(groups.places, values, row_count, out);
  }
  const int64_t elements = static_cast<int64_t>(groups.ids.size()) * row_count;
  if constexpr (std::is_same_v<T, C>) {
    std::fill(out, out + elements, kNothing<C>);
    AddGroups(groups.places, values, row_count, out);
  } else {
    std::vector<C> sums(static_cast<size_t>(elements), kNothing<C>);
    AddGroups(groups.places, values, row_count, sums.data());
    Convert(sums.data(), out, elements);
  }
}

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
    uint32_t any = 0;
    RunWith(BestVectorUnit(), [&] {
      for (int64_t i = 0; i < count; ++i) any |= outside(list[i]) ? 1 : 0;
    });
    if (any != 0) found = std::find_if(list, list + count, outside) - list;
  });
  return found;
}

void WriteIds(DataType id_type, Span<int64_t> ids, void* out) {
  WithIdType(id_type, [&](auto type) {
    using Id = decltype(type);
    auto* const to = static_cast<Id*>(out);
    for (int64_t k = 0; k < ids.size(); ++k) to[k] = static_cast<Id>(ids[k]);
  });
}

RowGroups GroupRows(DataType id_type, const void* ids, int64_t count) {
  RowGroups groups;
  WithIdType(id_type, [&](auto type) {
    using Id = decltype(type);
    const auto* const list = static_cast<const Id*>(ids);
    IdRange range;
    RunWith(BestVectorUnit(), [&] { range = RangeOf(list, count); });
    if (range.is_ascending) {
      groups.ids.assign(list, list + count);
    } else if (range.width / 64 <
               kMostWordsPerId * static_cast<uint64_t>(count)) {
      GroupByBits(list, count, range, &groups);
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

}  // namespace hvd
