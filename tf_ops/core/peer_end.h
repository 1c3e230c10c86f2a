// SPDX-License-Identifier: Apache-2.0
// PeerEnd: how a peer ended, as this rank was told.
#ifndef HVD_CORE_PEER_END_H_
#define HVD_CORE_PEER_END_H_

#include <cstdint>
#include <string>

#include "core/status.h"

namespace hvd {

struct PeerEnd {
  int rank = 0;
  bool failed = false;    // false: it shut down
  std::string text;       // first line of its error, or why it left
  bool gave_up = false;   // it was silent, and others have given it up
  bool restarts = false;  // it shut down to start again
};

// What a program is told of it. Values are fixed: Python has them too.
enum class PeerEndKind : uint8_t {
  kLeft = 0,     // it shut down, perhaps to start again
  kFailed = 1,   // it has said why
  kGivenUp = 2,  // it has said nothing, and others have given it up
};
inline PeerEndKind KindOf(const PeerEnd& end) {
  return end.gave_up  ? PeerEndKind::kGivenUp
         : end.failed ? PeerEndKind::kFailed
                      : PeerEndKind::kLeft;
}

// As a cause of what it makes fail.
inline Cause CauseOf(const PeerEnd& end) {
  const CauseKind kind = end.gave_up    ? CauseKind::kRankGivenUp
                         : end.failed   ? CauseKind::kRankFailed
                         : end.restarts ? CauseKind::kRankRestarts
                                        : CauseKind::kRankLeft;
  return {kind, end.rank, ""};
}

}  // namespace hvd

#endif  // HVD_CORE_PEER_END_H_
