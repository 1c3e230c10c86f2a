// SPDX-License-Identifier: Apache-2.0
// EndRelay: how the end of each rank reaches all others.
#ifndef HVD_CORE_END_RELAY_H_
#define HVD_CORE_END_RELAY_H_

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "core/control/message.h"
#include "core/shared_bytes.h"

namespace hvd {

// A failure is told to every rank at once. A rank that merely leaves tells one
// other, the *relay*: the lowest rank that has not ended, as far as the sender
// knows. The relay tells everybody, and what came in meanwhile goes out
// together. So 1000 ranks that leave at about the same time send a few thousand
// messages, not a million, and open few connections that they did not have.
//
// A rank that leaves waits for its own end to come back. If it does not come,
// the relay has gone or does not run. Then the rank asks the next one. After
// some of them it tells everybody itself.
//
// Reads no clock and knows no wire. Background thread only. Ranks are ranks of
// the job.
class EndRelay {
 public:
  using Clock = std::chrono::steady_clock;

  // A message, and to whom.
  struct Outgoing {
    std::vector<int> ranks;
    SharedBytes bytes;
  };

  EndRelay(int rank, int size);

  // This rank ends. Called once. `at_once`: this rank tells everybody itself.
  void Leave(PeerEndMessage end, bool at_once, Clock::time_point now);

  // Ends have come. Returns those that this rank had not heard of before,
  // except its own.
  std::vector<PeerEndMessage> Handle(PeerEnds ends, Clock::time_point now);

  // The messages to send now.
  std::vector<Outgoing> Take(Clock::time_point now);

  // This rank has ended, and its end, or what it has to pass on, may not have
  // reached everybody yet. Takes a second at most.
  bool busy(Clock::time_point now) const;

 private:
  // Tells one other rank of this rank's end, or everybody.
  void Tell(Clock::time_point now, std::vector<Outgoing>* out);
  // False: it was known.
  bool Gone(int peer);
  std::vector<int> Others() const;
  // The lowest rank that has not ended; this rank counts as one that has not.
  int LowestLeft() const;

  const int rank_;
  std::vector<bool> ended_;  // by rank, others than this
  int left_;                 // others that have not ended

  // This rank's end, until all know of it.
  std::optional<PeerEndMessage> own_;
  bool at_once_ = false;
  int asked_ = 0;  // relays, so far
  Clock::time_point ask_next_;

  // Ends to pass on, and when.
  std::vector<PeerEndMessage> round_;
  Clock::time_point next_round_;
  // A relay that has left stays until then: others leave about now.
  std::optional<Clock::time_point> stays_until_;
};

}  // namespace hvd

#endif  // HVD_CORE_END_RELAY_H_
