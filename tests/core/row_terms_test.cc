// SPDX-License-Identifier: Apache-2.0
// Which rows a GPU adds up, also where they are added up in parts.
#include "transport/device/row_terms.h"

#include <cstdint>
#include <random>
#include <vector>

#include "harness.h"

namespace hvd {
namespace {

using Numbers = std::vector<uint32_t>;

// The terms of each row.
std::vector<Numbers> Listed(const RowTerms& terms) {
  std::vector<Numbers> rows;
  for (size_t row = 0; row + 1 < terms.begins.size(); ++row) {
    rows.emplace_back(terms.sources.begin() + terms.begins[row],
                      terms.sources.begin() + terms.begins[row + 1]);
  }
  return rows;
}

TEST(terms_are_in_the_order_of_the_lists) {
  const Numbers a = {2, 0, 2}, b = {1, 2}, none;
  const RowTerms terms = TermsOf({{a, 0}, {none, 5}, {b, 10}}, 4);
  EXPECT_EQ(terms.rows(), 4);
  EXPECT_TRUE(Listed(terms) ==
              (std::vector<Numbers>{{1}, {10}, {0, 2, 11}, {}}));
  EXPECT_EQ(TermsOf({{none, 0}}, 0).rows(), 0);
}

TEST(few_terms_are_not_cut) {
  const Numbers places = {0, 0, 0, 1};
  RowTerms terms = TermsOf({{places, 0}}, 2);
  EXPECT_TRUE(CutTerms(3, &terms).begins.empty());
  EXPECT_TRUE(Listed(terms) == (std::vector<Numbers>{{0, 1, 2}, {3}}));
}

TEST(many_terms_are_added_up_in_parts) {
  std::mt19937 random(1);
  for (uint32_t most = 1; most < 9; ++most) {
    Numbers places;
    for (int i = 0; i < 200; ++i) places.push_back(random() % 20 * 2);
    RowTerms parts = TermsOf({{places, 0}}, 41);
    const std::vector<Numbers> expected = Listed(parts);
    const RowTerms of_parts = CutTerms(most, &parts);
    ASSERT_EQ(of_parts.rows(), 41);
    const std::vector<Numbers> listed = Listed(parts);
    std::vector<Numbers> found;
    for (const Numbers& row : Listed(of_parts)) {
      Numbers& terms = found.emplace_back();
      for (const uint32_t part : row) {
        EXPECT_TRUE(!listed[part].empty() && listed[part].size() <= most);
        terms.insert(terms.end(), listed[part].begin(), listed[part].end());
      }
    }
    EXPECT_TRUE(found == expected);
  }
}

}  // namespace
}  // namespace hvd
