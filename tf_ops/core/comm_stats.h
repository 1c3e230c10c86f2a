// SPDX-License-Identifier: Apache-2.0
// CommCounters: what this rank has sent and received, for hvd.comm_stats().
#ifndef HVD_CORE_COMM_STATS_H_
#define HVD_CORE_COMM_STATS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "core/types.h"

namespace hvd {

// A number that only grows. One thread adds, any thread reads. Adding costs as
// much as to a plain number.
class Counter {
 public:
  void Add(uint64_t more) {
    value_.store(value() + more, std::memory_order_relaxed);
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Counts what one verb has done. A block is a header and what follows it. It
// counts once for each rank that it is sent to, also where that rank reads it
// in place.
struct VerbCounters {
  Counter collectives;    // calls that have completed; a group is one
  Counter batches;        // in which they travelled
  Counter rows;           // of results whose size depends on all ranks
  Counter blocks;         // sent
  Counter payload_bytes;  // of these blocks
  Counter header_bytes;   // of these blocks
};

// Owner: the Runtime. Its background thread adds. They count from the start of
// the runtime on.
struct CommCounters {
  std::array<VerbCounters, kVerbCount> verbs;
  // The control plane, heartbeats and the timeline's events among it.
  Counter control_messages_sent;
  Counter control_messages_received;
  Counter control_bytes_sent;
  Counter control_bytes_received;

  VerbCounters& of(Verb verb) { return verbs[static_cast<size_t>(verb)]; }
};

// An object of whole numbers, with one of each verb's in "verbs".
[[nodiscard]] std::string ToJson(const CommCounters& counters);

}  // namespace hvd

#endif  // HVD_CORE_COMM_STATS_H_
