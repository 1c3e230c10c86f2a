// SPDX-License-Identifier: Apache-2.0
// TimelineWriter: the text of a timeline, out of all ranks' chunks.
#ifndef HVD_CORE_TIMELINE_WRITER_H_
#define HVD_CORE_TIMELINE_WRITER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/clock_offsets.h"
#include "core/timeline_rows.h"

namespace hvd {

// The ranks whose events a timeline has: all of a job of up to 64. Of a larger
// one the first ranks of all hosts, then their second ones, and so on, until
// there are 64. Ascending, with rank 0. The same on every rank.
[[nodiscard]] std::vector<int> TracedRanks(const Topology& topology);

// Makes text for the file; does not write it. Decoding and formatting happen
// here, so that the background thread has no part in them. A rank's times are
// moved to rank 0's clock. What comes from a host whose clock is not known yet
// waits, within limits.
//
// Thread: the file's.
class TimelineWriter {
 public:
  // `start_ns`: rank 0's clock where the timeline is 0.
  TimelineWriter(const Topology& topology, int64_t start_ns);

  // What the file begins and ends with. Without the end it can be read too.
  std::string Head();
  std::string Tail();
  // A TraceChunk's bytes, of a traced rank.
  std::string Add(int rank, const std::string& chunk);
  std::string SetClock(int host, const ClockOffset& clock);
  // So many chunks of the rank were dropped before they came here, behind those
  // that have come.
  std::string Lost(int rank, uint64_t chunks);

 private:
  struct Waiting {
    int rank;
    std::string chunk;
    bool follows_loss;  // of chunks
  };

  void AddNow(int rank, const std::string& chunk, bool follows_loss);

  const Topology topology_;
  const int64_t start_ns_;
  std::map<int, TimelineRows> rows_;                // by rank
  std::vector<std::optional<ClockOffset>> clocks_;  // by host
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0;
  std::set<int> losers_;  // ranks that have lost chunks behind their latest one
  std::map<int, uint64_t> unreadable_;  // chunks, by rank
  TraceLines lines_;
};

}  // namespace hvd

#endif  // HVD_CORE_TIMELINE_WRITER_H_
