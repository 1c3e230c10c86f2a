// SPDX-License-Identifier: Apache-2.0
// Unites ids pair by pair.
#include "cpu/id_union.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace hvd {
namespace {

// Unites a part of list `a` with a part of list `b`.
class PartUnion {
 public:
  // The parts are [i, i_end) of `a` and [j, j_end) of `b`. The union is written
  // to ids[first] and on, and its places begin with `first`.
  PartUnion(const std::vector<int64_t>& a, size_t i, size_t i_end,
            const std::vector<int64_t>& b, size_t j, size_t j_end, size_t first,
            IdUnion* united)
      : a_(a.data()),
        b_(b.data()),
        ids_(united->ids.data()),
        of_a_(united->places[0].data()),
        of_b_(united->places[1].data()),
        i_(i),
        i_end_(i_end),
        j_(j),
        j_end_(j_end),
        next_(first) {}

  // Both parts have ids left.
  bool has_both() const { return i_ < i_end_ && j_ < j_end_; }
  // Where the next id is written.
  size_t next() const { return next_; }

  // Adds an id. Without a branch: random ids would be mispredicted.
  void Step() {
    const int64_t from_a = a_[i_], from_b = b_[j_];
    // One of the two places is right. The other is written again.
    of_a_[i_] = of_b_[j_] = static_cast<uint32_t>(next_);
    ids_[next_++] = std::min(from_a, from_b);
    i_ += from_a <= from_b;
    j_ += from_b <= from_a;
  }

  void Finish() {
    while (has_both()) Step();
    AddRest(a_, i_, i_end_, of_a_);
    AddRest(b_, j_, j_end_, of_b_);
  }

 private:
  void AddRest(const int64_t* list, size_t begin, size_t end,
               uint32_t* places) {
    std::copy(list + begin, list + end, ids_ + next_);
    std::iota(places + begin, places + end, static_cast<uint32_t>(next_));
    next_ += end - begin;
  }

  const int64_t* const a_;
  const int64_t* const b_;
  int64_t* const ids_;
  uint32_t* const of_a_;
  uint32_t* const of_b_;
  size_t i_;
  const size_t i_end_;
  size_t j_;
  const size_t j_end_;
  size_t next_;
};

// Each step needs the one before it. So lower and higher ids are united in
// turn, and the processor works on two steps at a time.
IdUnion UnionOfTwo(const std::vector<int64_t>& a,
                   const std::vector<int64_t>& b) {
  IdUnion united;
  united.ids.resize(a.size() + b.size());
  united.places.emplace_back(a.size());
  united.places.emplace_back(b.size());
  const size_t i = a.size() / 2;
  const auto cut =
      i < a.size() ? std::lower_bound(b.begin(), b.end(), a[i]) : b.begin();
  const auto j = static_cast<size_t>(cut - b.begin());
  PartUnion lower(a, 0, i, b, 0, j, 0, &united);
  PartUnion higher(a, i, a.size(), b, j, b.size(), i + j, &united);
  while (lower.has_both() && higher.has_both()) {
    lower.Step();
    higher.Step();
  }
  lower.Finish();
  higher.Finish();
  // Ids that both lists have leave a gap between the two.
  const auto gap = static_cast<uint32_t>(i + j - lower.next());
  const auto ids = united.ids.begin();
  if (gap > 0) {
    std::copy(ids + static_cast<std::ptrdiff_t>(i + j),
              ids + static_cast<std::ptrdiff_t>(higher.next()),
              ids + static_cast<std::ptrdiff_t>(lower.next()));
  }
  united.ids.resize(higher.next() - gap);
  for (size_t at = i; at < a.size(); ++at) united.places[0][at] -= gap;
  for (size_t at = j; at < b.size(); ++at) united.places[1][at] -= gap;
  return united;
}

IdUnion UnionOfOne(const std::vector<int64_t>& list) {
  IdUnion united{list, {std::vector<uint32_t>(list.size())}};
  std::iota(united.places[0].begin(), united.places[0].end(), 0);
  return united;
}

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

}  // namespace hvd
