// SPDX-License-Identifier: Apache-2.0
// RecyclingMap: a hash map that keeps the memory of what was erased.
#ifndef HVD_CORE_CONTROL_RECYCLING_MAP_H_
#define HVD_CORE_CONTROL_RECYCLING_MAP_H_

#include <cstddef>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hvd {

// For elements that come and go all the time under much the same keys. An
// erased element is kept for the next insertion, with its key and value. So a
// string in a key and a vector in a value keep their capacity. Elements do not
// move while they are in the map. Not thread-safe.
template <typename Key, typename Value, typename Hash = std::hash<Key>>
class RecyclingMap {
 public:
  using Map = std::unordered_map<Key, Value, Hash>;
  using iterator = typename Map::iterator;

  iterator find(const Key& key) { return map_.find(key); }
  iterator begin() { return map_.begin(); }
  iterator end() { return map_.end(); }
  auto begin() const { return map_.begin(); }
  auto end() const { return map_.end(); }
  bool empty() const { return map_.empty(); }
  size_t size() const { return map_.size(); }

  // Returns the key's element, and inserts one if there is none. The value of a
  // new element is Value() or that of an erased element. So clear a value
  // before you erase its element.
  iterator FindOrInsert(const Key& key) {
    if (spare_.empty()) return map_.try_emplace(key).first;
    auto node = std::move(spare_.back());
    spare_.pop_back();
    node.key() = key;
    auto inserted = map_.insert(std::move(node));
    if (!inserted.inserted) spare_.push_back(std::move(inserted.node));
    return inserted.position;
  }

  void Erase(iterator element) {
    if (spare_.size() >= kMostSpare) {
      map_.erase(element);
      return;
    }
    spare_.push_back(map_.extract(element));
  }

 private:
  // Most models have fewer variables. What a burst leaves beyond that is freed.
  static constexpr size_t kMostSpare = 1024;

  Map map_;
  std::vector<typename Map::node_type> spare_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_RECYCLING_MAP_H_
