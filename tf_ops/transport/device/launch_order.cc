// SPDX-License-Identifier: Apache-2.0
// Proposes places, and compares them.
#include "transport/device/launch_order.h"

#include <algorithm>

namespace hvd {

LaunchOrder::Place LaunchOrder::Begin(int set) {
  const Place proposed = ++clock_ * kSets + set;
  pending_[proposed] = {proposed};
  return proposed;
}

void LaunchOrder::Settle(Place proposed, Place place) {
  clock_ = std::max(clock_, place / kSets);
  const auto found = pending_.find(proposed);
  if (found != pending_.end()) found->second = {place, true};
}

bool LaunchOrder::IsNext(Place proposed) const {
  const auto found = pending_.find(proposed);
  if (found == pending_.end() || !found->second.is_settled) return false;
  const Place place = found->second.earliest;
  return std::all_of(pending_.begin(), pending_.end(), [&](const auto& other) {
    return other.second.earliest >= place;
  });
}

}  // namespace hvd
