// SPDX-License-Identifier: Apache-2.0
// PeerNames: ranks of the job as people know them, by number and host.
#ifndef HVD_CORE_PEER_NAMES_H_
#define HVD_CORE_PEER_NAMES_H_

#include <string>
#include <vector>

namespace hvd {

// Ranks are ranks of the job. Does not change, so any thread may use it.
class PeerNames {
 public:
  // `hosts`: by rank. May be shorter, where hosts are not known.
  explicit PeerNames(std::vector<std::string> hosts);

  // Such as "rank 1 (host)".
  std::string Of(int rank) const;
  // Such as "rank 1 (host), rank 2 (host)".
  std::string Of(const std::vector<int>& ranks) const;

 private:
  const std::vector<std::string> hosts_;
};

}  // namespace hvd

#endif  // HVD_CORE_PEER_NAMES_H_
