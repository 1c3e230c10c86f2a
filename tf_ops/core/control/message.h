// SPDX-License-Identifier: Apache-2.0
// The control plane's messages and their bytes.
//
// Six kinds travel:
//
// - a Report from a member to its set's leader,
// - a LogMessage from the leader to each member,
// - PeerEnds from ranks that leave to every other (see end_relay.h),
// - a Beat between any two,
// - a TimelineControl from rank 0, and a TimelineChunk back (see timeline.h).
//
// Integers are variable-length, little end first. Decoding trusts nothing.
// Bytes that do not parse are a Status, never an assert.
#ifndef HVD_CORE_CONTROL_MESSAGE_H_
#define HVD_CORE_CONTROL_MESSAGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/control/set_change.h"
#include "core/request.h"
#include "core/shared_bytes.h"
#include "core/status.h"
#include "core/tuning.h"

namespace hvd {

// Small number for a signature that the set has agreed on. 0 stands for none.
// No number is used twice, so they must not run out within the life of a job.
using CacheId = uint64_t;

// "I have this tensor ready."
struct Submission {
  // Not 0: the name and the signature are the remembered ones. Only what may
  // change travels beside the number.
  CacheId cache_id = 0;
  Key key;              // name left empty when cached
  Signature signature;  // when not cached
  Shape first_dims;     // allgather and cached: dimension 0 of each shape
  int64_t step = 0;
  Status error;
};

// "I have these tensors ready, all of this step." They are remembered, and
// nothing else travels with their numbers. The usual news of a training step.
struct CachedSubmissions {
  int64_t step = 0;
  std::vector<CacheId> ids;
};

// "The step of this tensor was aborted here."
struct Withdrawal {
  Key key;
  int64_t step = 0;
  Status why;
};

// "I shall not ask for names with this prefix." It holds until this rank asks
// for one again, or sends the same with an empty text.
struct ScopeEnd {
  std::string name_prefix;
  std::string text;
};

// "I have no more tensors. Go on without mine until all have joined."
struct Join {};
// "I take my latest Join back."
struct Unjoin {};

// The last two are of the global set alone.
using ReportItem = std::variant<Submission, CachedSubmissions, Withdrawal,
                                ScopeEnd, Join, Unjoin, SetRequest, SetAnswer>;

struct Report {
  uint64_t log_seen = 0;  // number of the last log record applied
  std::vector<ReportItem> items;
};

struct AgreedTensor {
  CacheId cache_id = 0;
  Key key;  // name left empty when every member knows cache_id
  // allgather: dimension 0 of [shape][rank of the set]
  std::vector<std::vector<int64_t>> first_dims;
  // For members that have not submitted it. Set where the batch has absent
  // ranks and the key has its name.
  std::optional<Signature> signature = std::nullopt;
};

// "These travel now, together."
struct AgreedBatch {
  std::vector<AgreedTensor> tensors;
  // Ranks that have joined, ascending. They take part without tensors.
  std::vector<int> absent = {};
  // What an average is divided by. 0: the size of the set.
  int64_t divisor = 0;
};

// Ranks of the set, `last` included.
struct RankRange {
  int first = 0;
  int last = 0;
};

// Each of these ranks loses a submission of the key, as often as it stands in
// `ranks`. It is the one before which `older` others still wait.
struct FailedKey {
  CacheId cache_id = 0;
  Key key;  // name left empty when every member knows cache_id
  int older = 0;
  std::vector<RankRange> ranks;
};

// "These submissions failed, for this reason." If a key comes more than once,
// the order counts.
struct Failure {
  Status status;
  std::vector<FailedKey> keys;
};

// "Forget these."
struct Eviction {
  std::vector<CacheId> ids;
};

// "All ranks have joined, this one last." It answers the oldest Join of each.
struct Joined {
  int last_rank = 0;
};

// "The oldest Join of this rank was taken back in time."
struct JoinWithdrawn {
  int rank = 0;
};

// "So many records do not concern you." Never in the log itself.
struct Skipped {
  uint64_t count = 1;
};

// A Tuning holds for the batches of the records behind it.
using LogRecord = std::variant<AgreedBatch, Failure, Eviction, Tuning, Skipped,
                               Joined, JoinWithdrawn, SetChange>;

// Records are numbered 1, 2, ... over the life of the set.
struct LogMessage {
  uint64_t first_number = 1;
  std::vector<LogRecord> records;
};

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
};

// Some ends, and whether the receiver is to tell all others of them.
struct PeerEnds {
  bool pass_on = false;
  std::vector<PeerEndMessage> ends;
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

using Message = std::variant<Report, LogMessage, PeerEnds, Beat,
                             TimelineControl, TimelineChunk>;

struct Envelope {
  int set_id = 0;  // the process set's serial
  Message message;
};

struct OutgoingMessage {
  int rank = 0;  // of the set
  SharedBytes bytes;
};

[[nodiscard]] std::string Encode(const Envelope& envelope);
// A log message out of records that are encoded already.
[[nodiscard]] std::string Encode(const LogRecord& record);
[[nodiscard]] std::string EncodeLog(int set_id, uint64_t first_number,
                                    const std::vector<std::string>& records);
[[nodiscard]] Result<Envelope> Decode(const std::string& bytes);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_MESSAGE_H_
