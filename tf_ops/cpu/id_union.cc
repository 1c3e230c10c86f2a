// SPDX-License-Identifier: Apache-2.0
// Unites ids pair by pair.
#include "cpu/id_union.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>

namespace hvd {
namespace {

using Ids = Span<int64_t>;

// Unites a part of list `a` with a part of list `b`.
class PartUnion {
 public:
  struct Lists {
    Ids a, b;
    uint32_t* of_a;
    uint32_t* of_b;
    int64_t* united;
  };

  // The parts are [i, i_end) of `a` and [j, j_end) of `b`. The union is written
  // to united[first] and on, and its places begin with `first`.
  PartUnion(const Lists& lists, int64_t i, int64_t i_end, int64_t j,
            int64_t j_end, int64_t first)
      : a_(lists.a.data()),
        b_(lists.b.data()),
        united_(lists.united),
        of_a_(lists.of_a),
        of_b_(lists.of_b),
        i_(i),
        i_end_(i_end),
        j_(j),
        j_end_(j_end),
        next_(first) {}

  // Both parts have ids left.
  bool has_both() const { return i_ < i_end_ && j_ < j_end_; }
  // Where the next id is written.
  int64_t next() const { return next_; }

  // Adds an id. Without a branch: random ids would be mispredicted.
  void Step() {
    const int64_t from_a = a_[i_], from_b = b_[j_];
    // One of the two places is right. The other is written again.
    of_a_[i_] = of_b_[j_] = static_cast<uint32_t>(next_);
    united_[next_++] = std::min(from_a, from_b);
    i_ += from_a <= from_b;
    j_ += from_b <= from_a;
  }

  void Finish() {
    while (has_both()) Step();
    AddRest(a_, i_, i_end_, of_a_);
    AddRest(b_, j_, j_end_, of_b_);
  }

 private:
  void AddRest(const int64_t* list, int64_t begin, int64_t end,
               uint32_t* places) {
    std::copy(list + begin, list + end, united_ + next_);
    std::iota(places + begin, places + end, static_cast<uint32_t>(next_));
    next_ += end - begin;
  }

  const int64_t* const a_;
  const int64_t* const b_;
  int64_t* const united_;
  uint32_t* const of_a_;
  uint32_t* const of_b_;
  int64_t i_;
  const int64_t i_end_;
  int64_t j_;
  const int64_t j_end_;
  int64_t next_;
};

// Each step needs the one before it. So lower and higher ids are united in
// turn, and the processor works on two steps at a time.
int64_t UniteTwo(const PartUnion::Lists& lists) {
  const Ids a = lists.a, b = lists.b;
  const int64_t i = a.size() / 2;
  const int64_t j =
      i < a.size() ? std::lower_bound(b.begin(), b.end(), a[i]) - b.begin() : 0;
  PartUnion lower(lists, 0, i, 0, j, 0);
  PartUnion higher(lists, i, a.size(), j, b.size(), i + j);
  while (lower.has_both() && higher.has_both()) {
    lower.Step();
    higher.Step();
  }
  lower.Finish();
  higher.Finish();
  // Ids that both lists have leave a gap between the two.
  const int64_t gap = i + j - lower.next();
  if (gap > 0) {
    std::copy(lists.united + i + j, lists.united + higher.next(),
              lists.united + lower.next());
    const auto closed = static_cast<uint32_t>(gap);
    for (int64_t at = i; at < a.size(); ++at) lists.of_a[at] -= closed;
    for (int64_t at = j; at < b.size(); ++at) lists.of_b[at] -= closed;
  }
  return higher.next() - gap;
}

int64_t TakeOne(Ids list, uint32_t* places, int64_t* united) {
  std::copy(list.begin(), list.end(), united);
  std::iota(places, places + list.size(), 0);
  return list.size();
}

// Unites pairs of lists, and then what has come of them.
int64_t UniteMany(const std::vector<Ids>& lists, uint32_t* places,
                  int64_t* united) {
  int64_t total = 0;
  for (const Ids& list : lists) total += list.size();
  const std::unique_ptr<int64_t[]> ids(new int64_t[total]);
  const std::unique_ptr<uint32_t[]> of_pairs(new uint32_t[total]);
  std::vector<Ids> pairs;
  int64_t* next = ids.get();
  uint32_t* next_places = places;
  for (size_t i = 0; i < lists.size(); i += 2) {
    const std::vector<Ids> pair(
        lists.begin() + static_cast<std::ptrdiff_t>(i),
        lists.begin() +
            static_cast<std::ptrdiff_t>(std::min(i + 2, lists.size())));
    pairs.emplace_back(next, UniteIds(pair, next_places, next));
    next += pairs.back().size();
    for (const Ids& list : pair) next_places += list.size();
  }
  const int64_t count = UniteIds(pairs, of_pairs.get(), united);
  const uint32_t* of_pair = of_pairs.get();
  for (size_t i = 0; i < lists.size(); ++i) {
    for (int64_t k = 0; k < lists[i].size(); ++k) {
      *places = of_pair[*places];
      ++places;
    }
    if (i % 2 == 1) of_pair += pairs[i / 2].size();
  }
  return count;
}

}  // namespace

int64_t UniteIds(const std::vector<Ids>& lists, uint32_t* places,
                 int64_t* united) {
  if (lists.empty()) return 0;
  if (lists.size() == 1) return TakeOne(lists[0], places, united);
  if (lists.size() > 2) return UniteMany(lists, places, united);
  return UniteTwo(
      {lists[0], lists[1], places, places + lists[0].size(), united});
}

}  // namespace hvd
