// SPDX-License-Identifier: Apache-2.0
// Timeline: brings what ranks note to the file on rank 0.
#ifndef HVD_CORE_TIMELINE_H_
#define HVD_CORE_TIMELINE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/backend.h"
#include "core/clock_offsets.h"
#include "core/comm_stats.h"
#include "core/control/message.h"
#include "core/status.h"
#include "core/timeline_file.h"
#include "core/trace.h"

namespace hvd {

// Rank 0 has the file. It starts and stops the traces of the traced ranks by
// messages, so nobody else need ask for a timeline. While it runs, each of them
// sends its chunk four times a second. That also bounds what is lost of a rank
// that is killed, and the traffic. Rank 0 gives a receipt for each chunk but
// the last. A rank that lacks some keeps its next chunk, so that nothing piles
// up where rank 0 is stopped.
//
// Owner: the BackgroundLoop. Its thread alone calls the methods.
class Timeline {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The pointers outlive it.
  Timeline(const Topology& topology, Channel* channel, CommCounters* counters);

  Trace* trace() { return &trace_; }

  // On the others, before any message: rank 0 starts a timeline with the job.
  // So nothing of what comes before its message is missing.
  void StartWithJob(bool mark_cycles);

  // On rank 0. The timeline that ran before must have been stopped.
  void Start(std::shared_ptr<TimelineFile> file, bool mark_cycles, Time now);
  // On rank 0. Asks the ranks for the rest. `stopped` is called when all have
  // sent it, or after a second. Then nothing is added to the file any more.
  void Stop(std::function<void()> stopped, Time now);

  // This rank ends. On rank 0 it is Stop, if nobody has called that. Its end
  // itself tells the others. A rank that has failed sends what it has at once.
  void Leave(bool failed, Time now);
  // A peer has ended, and what fails because of that has failed. If the peer
  // has failed, nothing more comes from it.
  void PeerEnded(int rank, bool failed, Time now);

  // Messages of peers. Not Ok: such a message may not come from there.
  Status Handle(int peer, const TimelineControl& control, Time now);
  Status Handle(int peer, TimelineChunk chunk);
  Status Handle(int peer, const TimelineReceipt& receipt);
  void HandleAnswer(int peer, const Beat& beat);

  // In every pass: sends or writes what is due.
  void Look(Time now);
  // Until something is due. Nothing: until something happens.
  std::optional<std::chrono::steady_clock::duration> UntilDue(Time now) const;
  // Whether Look has still to send, or to wait for, the end of a timeline.
  bool is_stopping() const { return stopping_.has_value(); }

 private:
  struct Stopping {
    std::function<void()> stopped;  // null: nobody waits
    Time limit;
  };

  bool leads() const { return topology_.rank == 0; }
  void Tell(const TimelineControl& control);
  void SendChunk(bool is_last);
  void AskClocks();
  void AskClock(int rank);
  // Offsets of hosts whose answers were too few.
  void SetUnsettledClocks();
  void BeginStop(std::function<void()> stopped, std::chrono::milliseconds limit,
                 Time now);
  void EndStop();

  const Topology topology_;
  Channel* const channel_;
  Trace trace_;
  uint64_t number_ = 0;  // of the timeline that runs, or ran last
  int unreceipted_ = 0;  // chunks of it, of this rank
  Time next_due_;
  std::optional<Stopping> stopping_;

  // On rank 0.
  std::vector<int> traced_;        // others than this one
  std::vector<int> hosts_firsts_;  // the first traced rank of each other host
  std::set<int> ended_;
  std::set<int> asked_;  // they have not answered yet
  ClockOffsets clocks_;
  std::shared_ptr<TimelineFile> file_;  // null: no timeline runs
  std::set<int> awaited_;               // they have not sent their last chunk
};

}  // namespace hvd

#endif  // HVD_CORE_TIMELINE_H_
