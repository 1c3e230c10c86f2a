// SPDX-License-Identifier: Apache-2.0
// Finds what keeps cards apart.
#include "transport/device/lane_offer.h"

#include <algorithm>
#include <cstring>

namespace hvd {

void LaneOffer::Refuse(const std::string& why) {
  const size_t length = std::min(why.size(), kTextBytes - 1);
  std::memcpy(refusal, why.data(), length);
  refusal[length] = '\0';
  if (length == 0) refusal[0] = '?';
}

Status Decide(const std::vector<LaneOffer>& offers) {
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const LaneOffer& offer = offers[rank];
    const std::string name = "rank " + std::to_string(rank);
    if (offer.refusal[0] != '\0') {
      return FailedPrecondition(
          name + " says: " +
          std::string(offer.refusal,
                      strnlen(offer.refusal, sizeof(offer.refusal))));
    }
    if (offer.version != offers[0].version) {
      return FailedPrecondition(
          "NCCL's version is " + std::to_string(offers[0].version) +
          " on rank 0 and " + std::to_string(offer.version) + " on " + name);
    }
    for (size_t other = 0; other < rank; ++other) {
      if (std::memcmp(offers[other].card, offer.card, sizeof(offer.card)) ==
          0) {
        return FailedPrecondition("rank " + std::to_string(other) + " and " +
                                  name + " share a GPU");
      }
    }
  }
  return Status::Ok();
}

}  // namespace hvd
