// SPDX-License-Identifier: Apache-2.0
// RecyclingMap: a map like any other that keeps the memory of what was erased.
#include "core/control/recycling_map.h"

#include <map>
#include <random>
#include <string>

#include "harness.h"

namespace hvd {
namespace {

using Lists = RecyclingMap<std::string, std::vector<int>>;

TEST(recycling_map_is_a_map) {
  RecyclingMap<int, int> map;
  std::map<int, int> model;
  std::mt19937 random(3);
  // More elements at times than it keeps the memory of.
  for (int round = 0; round < 20000; ++round) {
    const int key = static_cast<int>(random() % 3000);
    const auto found = map.find(key);
    ASSERT_EQ(found == map.end(), model.count(key) == 0);
    if (found != map.end() && random() % 3 == 0) {
      map.Erase(found);
      model.erase(key);
      continue;
    }
    if (found == map.end()) map.FindOrInsert(key)->second = 0;
    EXPECT_EQ(map.FindOrInsert(key)->first, key);
    EXPECT_EQ(++map.FindOrInsert(key)->second, ++model[key]);
  }
  EXPECT_EQ(map.size(), model.size());
  EXPECT_FALSE(map.empty());
  EXPECT_TRUE((std::map<int, int>(map.begin(), map.end())) == model);
}

TEST(recycling_map_a_new_element_has_the_memory_of_an_erased_one) {
  Lists map;
  std::vector<int>* list = &map.FindOrInsert("a name of some length")->second;
  list->assign(100, 7);
  const int* memory = list->data();
  list->clear();
  map.Erase(map.find("a name of some length"));
  EXPECT_TRUE(map.empty());
  EXPECT_TRUE(map.find("a name of some length") == map.end());
  list = &map.FindOrInsert("another")->second;
  list->assign(100, 8);
  EXPECT_TRUE(list->data() == memory);
}

TEST(recycling_map_elements_do_not_move) {
  Lists map;
  const std::vector<int>* first = &map.FindOrInsert("first")->second;
  for (int i = 0; i < 5000; ++i) map.FindOrInsert(std::to_string(i));
  for (int i = 0; i < 5000; ++i) map.Erase(map.find(std::to_string(i)));
  EXPECT_TRUE(&map.FindOrInsert("first")->second == first);
  EXPECT_EQ(map.size(), 1u);
}

}  // namespace
}  // namespace hvd
