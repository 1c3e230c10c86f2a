// SPDX-License-Identifier: Apache-2.0
// PeerEnd: how a peer ended, as this rank was told.
#ifndef HVD_CORE_PEER_END_H_
#define HVD_CORE_PEER_END_H_

#include <string>

namespace hvd {

struct PeerEnd {
  int rank = 0;
  bool failed = false;   // false: it shut down
  std::string text;      // first line of its error, or why it left
  bool gave_up = false;  // it was silent, and others have given it up
};

}  // namespace hvd

#endif  // HVD_CORE_PEER_END_H_
