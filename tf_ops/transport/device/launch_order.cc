// SPDX-License-Identifier: Apache-2.0
// Proposes places, and compares them.
#include "transport/device/launch_order.h"

#include <algorithm>

namespace hvd {

LaunchOrder::Place LaunchOrder::Begin(int set_id) {
  const Place proposed = ++clock_ * kTick + kSets + set_id;
  pending_[proposed] = {proposed};
  return proposed;
}

LaunchOrder::Place LaunchOrder::BeginAgain(int set_id) {
  Place& clock = again_clocks_[set_id];
  clock = std::max(clock, launched_clock_) + 1;
  const Place proposed = clock * kTick + set_id;
  pending_[proposed] = {proposed};
  return proposed;
}

void LaunchOrder::Settle(Place proposed, Place place) {
  clock_ = std::max(clock_, place / kTick);
  const auto found = pending_.find(proposed);
  if (found != pending_.end()) found->second = {place, true};
}

void LaunchOrder::Launch(Place proposed) {
  const auto found = pending_.find(proposed);
  if (found == pending_.end()) return;
  launched_clock_ = std::max(launched_clock_, found->second.earliest / kTick);
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
