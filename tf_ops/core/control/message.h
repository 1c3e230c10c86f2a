// SPDX-License-Identifier: Apache-2.0
// The control plane's messages and their bytes.
//
// Nine kinds travel:
//
// - a Report from a member to its set's leader, or to its host's gatherer,
// - a HostReport from a gatherer to the leader (see host_tree.h),
// - a LogMessage from the leader to each member, or through the gatherers,
// - PeerEnds from ranks that leave to every other, and HostTold back (see
//   end_relay.h),
// - a Beat between any two,
// - a TimelineControl from rank 0, a TimelineChunk back, and a TimelineReceipt
//   for it (see timeline.h).
//
// Integers are variable-length, little end first. Decoding trusts nothing.
// Bytes that do not parse are a Status, never an assert.
#ifndef HVD_CORE_CONTROL_MESSAGE_H_
#define HVD_CORE_CONTROL_MESSAGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/control/log_record.h"
#include "core/control/report.h"
#include "core/shared_bytes.h"
#include "core/status.h"

namespace hvd {

// A rank leaves, or has failed.
struct PeerEndMessage {
  int rank = 0;
  bool failed = false;
  std::string text;
  // By the process set's serial: the last log record that the rank has applied.
  // It takes no part in batches after it.
  std::map<int, uint64_t> log_seen;
  // The first rank that failed, as far as the sender knows, and its words. -1:
  // none. A rank that leaves because of it may be heard earlier than it.
  int cause_rank = -1;
  std::string cause_text;
  // The cause has said nothing, and others have given it up. Nothing that it
  // takes part in can complete, whatever log_seen says.
  bool gave_up = false;
  // The rank has not failed, and starts again: it waits for all others there.
  bool restarts = false;
};

// Whom the receiver of some ends tells of them.
enum class PassOn : uint8_t { kToNobody = 0, kToHost = 1, kToJob = 2 };
inline constexpr uint8_t kPassOnCount = 3;

struct PeerEnds {
  PassOn pass_on = PassOn::kToNobody;
  // kToHost: the answer has this number, which is the sender's.
  uint64_t round = 0;
  std::vector<PeerEndMessage> ends;
};

// The other ranks of the sender's host have been sent these ends.
struct HostTold {
  uint64_t round = 0;
};

// "Are you there?", and "yes".
struct Beat {
  bool asks = false;
  // Also: write your Python stacks.
  bool wants_stacks = false;
  // Not 0: what is the time there? The answer repeats it and says so. Both are
  // SteadyNow_ns.
  int64_t asked_ns = 0;
  int64_t clock_ns = 0;
};

// Note what happens from now on, or no longer. Timelines are numbered.
struct TimelineControl {
  uint64_t number = 0;
  bool is_on = false;
  bool mark_cycles = false;
};

// What was noted. `is_last`: nothing of this timeline follows.
struct TimelineChunk {
  uint64_t number = 0;
  bool is_last = false;
  std::string events;  // a TraceChunk's bytes, not decoded; may be empty
};

// Rank 0 has one of the receiver's chunks, which was not the last one.
struct TimelineReceipt {
  uint64_t number = 0;  // of the timeline
};

using Message =
    std::variant<Report, LogMessage, PeerEnds, Beat, TimelineControl,
                 TimelineChunk, HostReport, HostTold, TimelineReceipt>;

struct Envelope {
  int serial = 0;  // the process set's
  Message message;
};

struct OutgoingMessage {
  int rank = 0;  // of the set
  SharedBytes bytes;
};

[[nodiscard]] std::string Encode(const Envelope& envelope);
// A log message out of records that are encoded already.
[[nodiscard]] std::string Encode(const LogRecord& record);
[[nodiscard]] std::string EncodeLog(int serial, uint64_t first_number,
                                    const std::vector<std::string>& records);
[[nodiscard]] Result<Envelope> Decode(const std::string& bytes);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_MESSAGE_H_
