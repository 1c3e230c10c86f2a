// SPDX-License-Identifier: Apache-2.0
// Words for ranks.
#include "core/peer_names.h"

#include <utility>

namespace hvd {

PeerNames::PeerNames(std::vector<std::string> hosts)
    : hosts_(std::move(hosts)) {}

std::string PeerNames::Of(int rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (rank < static_cast<int>(hosts_.size())) {
    text += " (" + hosts_[static_cast<size_t>(rank)] + ")";
  }
  return text;
}

std::string PeerNames::Of(const std::vector<int>& ranks) const {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + Of(ranks[i]);
  }
  return text;
}

}  // namespace hvd
