// SPDX-License-Identifier: Apache-2.0
// Awaits blocks of other ranks, of this host and of others.
#include "transport/collectives/two_level_chunk.h"

namespace hvd {

void TwoLevelChunk::Expect(int hop, Arrival* arrival) {
  arrival->move = Receive(arrival->peer, hop, arrival->block);
  arrival->is_awaited = true;
}

void TwoLevelChunk::ExpectAll(int hop, std::vector<Arrival>* arrivals,
                              int* missing) {
  for (Arrival& arrival : *arrivals) {
    if (arrival.peer < 0) continue;
    Expect(hop, &arrival);
    ++*missing;
  }
}

bool TwoLevelChunk::HasCome(Arrival* arrival) {
  if (!arrival->is_awaited || !Arrive(arrival->move, &arrival->block)) {
    return false;
  }
  arrival->is_awaited = false;
  return true;
}

bool TwoLevelChunk::Collect(std::vector<Arrival>* arrivals, int* missing) {
  bool moved = false;
  for (Arrival& arrival : *arrivals) {
    if (!HasCome(&arrival)) continue;
    arrival.poison = Read(arrival.block);
    --*missing;
    moved = true;
  }
  return moved;
}

void TwoLevelChunk::ReleaseAll(std::vector<Arrival>* arrivals) {
  for (Arrival& arrival : *arrivals) {
    if (arrival.peer >= 0) Release(&arrival);
  }
}

Poison TwoLevelChunk::FirstPoison(const std::vector<Arrival>& arrivals) const {
  if (work_->is_detached()) return work_->poison();
  for (const Arrival& arrival : arrivals) {
    if (arrival.poison) return arrival.poison;
  }
  return {};
}

}  // namespace hvd
