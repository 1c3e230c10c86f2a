// SPDX-License-Identifier: Apache-2.0
// Joins failures for one reason, and turns ranks into ranges.
#include "core/control/failure_queue.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

void AddRank(int rank, std::vector<RankRange>* ranges) {
  if (!ranges->empty() && ranges->back().last + 1 == rank) {
    ranges->back().last = rank;
  } else {
    ranges->push_back({rank, rank});
  }
}

// Sorts the ranges, and joins those that follow one another. A rank that is in
// two ranges stays in two.
void MergeRanges(std::vector<RankRange>* ranges) {
  const auto before = [](const RankRange& a, const RankRange& b) {
    return a.first < b.first;
  };
  if (std::is_sorted(ranges->begin(), ranges->end(), before)) return;
  std::sort(ranges->begin(), ranges->end(), before);
  std::vector<RankRange> joined;
  for (const RankRange& range : *ranges) {
    if (!joined.empty() && joined.back().last + 1 == range.first) {
      joined.back().last = range.last;
    } else {
      joined.push_back(range);
    }
  }
  *ranges = std::move(joined);
}

}  // namespace

void FailureQueue::Add(const Key& key, int rank, int older,
                       const SharedStatus& why, uint64_t agreements) {
  if (groups_.empty() || groups_.back().why != why ||
      groups_.back().agreements != agreements) {
    groups_.push_back({why, agreements, {}});
  }
  std::vector<Item>& items = groups_.back().items[key];
  if (items.empty() || items.back().older != older)
    items.push_back({older, {}});
  AddRank(rank, &items.back().ranks);
}

std::optional<Failure> FailureQueue::Take(const IsHeldBack& is_held_back) {
  for (auto group = groups_.begin(); group != groups_.end(); ++group) {
    Failure failure;
    failure.keys.reserve(group->items.size());
    for (auto next = group->items.begin(); next != group->items.end();) {
      const auto entry = next++;
      if (is_held_back(entry->first, group->agreements)) continue;
      auto node = group->items.extract(entry);
      for (Item& item : node.mapped()) {
        MergeRanges(&item.ranks);
        failure.keys.push_back(
            {0, node.key(), item.older, std::move(item.ranks)});
      }
    }
    if (failure.keys.empty()) continue;
    failure.status = *group->why;
    if (group->items.empty()) groups_.erase(group);
    return failure;
  }
  return std::nullopt;
}

}  // namespace hvd
