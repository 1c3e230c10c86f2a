// SPDX-License-Identifier: Apache-2.0
// Ids of several ranks are united, against a map.
#include "cpu/id_union.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "harness.h"

namespace hvd {
namespace {

struct Union {
  std::vector<int64_t> ids;
  std::vector<std::vector<uint32_t>> places;
};

Union UnionOf(const std::vector<std::vector<int64_t>>& lists) {
  constexpr int64_t kBehind = -77;  // what is behind the ids stays
  Union united;
  size_t total = 0;
  for (const std::vector<int64_t>& list : lists) total += list.size();
  united.ids.resize(total + 1, kBehind);
  std::vector<uint32_t> places(total + 1, 77);
  const std::vector<Span<int64_t>> spans(lists.begin(), lists.end());
  const int64_t count = UniteIds(spans, places.data(), united.ids.data());
  EXPECT_EQ(united.ids.back(), kBehind);
  EXPECT_EQ(places.back(), 77u);
  united.ids.resize(static_cast<size_t>(count));
  auto next = places.begin();
  for (const std::vector<int64_t>& list : lists) {
    const auto end = next + static_cast<std::ptrdiff_t>(list.size());
    united.places.emplace_back(next, end);
    next = end;
  }
  return united;
}

TEST(unions_of_any_number_of_lists) {
  std::mt19937_64 random(3);
  for (size_t lists = 0; lists < 9; ++lists) {
    for (int64_t spread : {1, 40, 100000}) {
      std::vector<std::vector<int64_t>> parts;
      std::map<int64_t, int> expected;
      for (size_t p = 0; p < lists; ++p) {
        std::map<int64_t, int> own;
        for (size_t i = 0; i < random() % 300; ++i) {
          own[static_cast<int64_t>(random() % spread) - 2] = 1;
        }
        std::vector<int64_t>& part = parts.emplace_back();
        for (const auto& [id, one] : own) part.push_back(id);
        expected.insert(own.begin(), own.end());
      }
      const Union united = UnionOf(parts);
      ASSERT_EQ(united.ids.size(), expected.size());
      size_t at = 0;
      for (const auto& [id, one] : expected) EXPECT_EQ(united.ids[at++], id);
      ASSERT_EQ(united.places.size(), parts.size());
      for (size_t p = 0; p < lists; ++p) {
        ASSERT_EQ(united.places[p].size(), parts[p].size());
        for (size_t i = 0; i < parts[p].size(); ++i) {
          EXPECT_EQ(united.ids[united.places[p][i]], parts[p][i]);
        }
      }
    }
  }
}

std::vector<int64_t> Counted(int64_t first, int64_t end, int64_t step) {
  std::vector<int64_t> ids;
  for (int64_t id = first; id < end; id += step) ids.push_back(id);
  return ids;
}

// Two lists are cut in two by the first one's ids.
TEST(unions_of_two_lists_of_any_shape) {
  const std::vector<std::vector<int64_t>> shapes = {
      {},
      {5},
      Counted(0, 10, 1),
      Counted(0, 1000, 7),
      Counted(500, 600, 1),
      Counted(2000, 2003, 1),
      Counted(-3000, -1000, 3),
  };
  for (const std::vector<int64_t>& a : shapes) {
    for (const std::vector<int64_t>& b : shapes) {
      std::vector<int64_t> expected;
      std::set_union(a.begin(), a.end(), b.begin(), b.end(),
                     std::back_inserter(expected));
      const Union united = UnionOf({a, b});
      ASSERT_TRUE(united.ids == expected);
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(united.ids[united.places[0][i]], a[i]);
      }
      for (size_t i = 0; i < b.size(); ++i) {
        EXPECT_EQ(united.ids[united.places[1][i]], b[i]);
      }
    }
  }
}

}  // namespace
}  // namespace hvd
