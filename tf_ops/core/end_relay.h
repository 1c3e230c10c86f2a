// SPDX-License-Identifier: Apache-2.0
// EndRelay: how the end of each rank reaches all others.
#ifndef HVD_CORE_END_RELAY_H_
#define HVD_CORE_END_RELAY_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/control/message.h"
#include "core/host_map.h"
#include "core/shared_bytes.h"

namespace hvd {

// A rank that fails tells all others at once. A rank that merely leaves tells
// one other, the *relay*: the lowest rank that has not ended, as far as the
// sender knows. The relay tells everybody, and what came in meanwhile goes out
// together.
//
// Who tells everybody tells each rank of its own host. Of another host it tells
// the lowest rank that has not ended, the host's *gatherer*, which tells the
// host's other ranks. So with H hosts of L ranks it sends H - 1 + L - 1
// messages, and opens few connections that it did not have. The gatherer
// answers when it has told. If it does not answer in time, it has gone or does
// not run, and each rank of its host is told directly.
//
// A rank that leaves waits for its own end to come back. If it does not come,
// the relay has gone or does not run. Then the rank asks the next one. After
// some of them it tells everybody itself.
//
// Ranks often leave because another one has. Their messages may come before
// that one's. So whoever tells of an end also tells of the first end that it
// has heard of.
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

  // `hosts`: of the job.
  EndRelay(int rank, HostMap hosts);

  // This rank ends. Called once. `at_once`: this rank tells everybody itself.
  void Leave(PeerEndMessage end, bool at_once, Clock::time_point now);

  // Ends have come from a peer. Returns those that this rank had not heard of
  // before, except its own.
  std::vector<PeerEndMessage> Handle(int peer, PeerEnds ends,
                                     Clock::time_point now);
  void Handle(int peer, const HostTold& told);

  // The messages to send now.
  std::vector<Outgoing> Take(Clock::time_point now);

  // This rank has ended, and its end, or what it has to pass on, may not have
  // reached everybody yet. Takes a second at most.
  bool busy(Clock::time_point now) const;

  // All hosts that this rank has told of an end have answered, or each of their
  // ranks has been told directly.
  bool hosts_are_told() const { return unanswered_.empty(); }

 private:
  // What some gatherers have been sent and have not answered.
  struct Round {
    uint64_t number;
    std::vector<int> gatherers;
    SharedBytes bytes;  // for the ranks of their hosts
    Clock::time_point due;
  };
  // What this rank passes on to its host.
  struct ForHost {
    int from;
    uint64_t round;
    std::vector<PeerEndMessage> ends;
  };

  // Tells one other rank of this rank's end, or everybody.
  void Tell(Clock::time_point now, std::vector<Outgoing>* out);
  void TellAll(std::vector<PeerEndMessage> ends, Clock::time_point now,
               std::vector<Outgoing>* out);
  void TellOwnHost(std::vector<Outgoing>* out);
  SharedBytes Bytes(PassOn pass_on, uint64_t round,
                    std::vector<PeerEndMessage> ends) const;
  // The ranks of hosts that did not answer in time.
  void TellDirectly(Clock::time_point now, std::vector<Outgoing>* out);
  // False: it was known.
  bool Gone(int peer);
  // The ranks of a host, except one.
  std::vector<int> OthersOf(int host, int rank) const;
  // The lowest rank of the host that takes messages: it has not ended, or waits
  // for its end to come back with `ends`. -1: there is none.
  int GathererOf(int host, const std::vector<PeerEndMessage>& ends) const;
  // The lowest rank that has not ended; this rank counts as one that has not.
  int LowestLeft() const;

  const int rank_;
  const HostMap hosts_;
  std::vector<bool> ended_;                  // by rank, others than this
  int left_;                                 // others that have not ended
  std::optional<PeerEndMessage> first_end_;  // of another, that was heard of

  // This rank's end, until all know of it.
  std::optional<PeerEndMessage> own_;
  bool at_once_ = false;
  int asked_ = 0;  // relays, so far
  Clock::time_point ask_next_;

  // Ends to tell all others of, and when.
  std::vector<PeerEndMessage> round_;
  Clock::time_point next_round_;
  std::vector<ForHost> for_host_;
  uint64_t last_number_ = 0;
  std::vector<Round> unanswered_;
  // A relay that has left stays until then: others leave about now.
  std::optional<Clock::time_point> stays_until_;
};

}  // namespace hvd

#endif  // HVD_CORE_END_RELAY_H_
