// SPDX-License-Identifier: Apache-2.0
// What happens to a rank's tensors, as events, and their bytes.
//
// A TraceChunk is what a rank has noted within a fraction of a second. Its
// bytes stand for themselves: names are written out once in each chunk.
// Decoding trusts nothing.
#ifndef HVD_CORE_TRACE_EVENTS_H_
#define HVD_CORE_TRACE_EVENTS_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/batch_times.h"
#include "core/coding.h"
#include "core/status.h"
#include "core/types.h"

namespace hvd {

// Times are SteadyNow_ns of the rank that wrote them. Tickets are of
// Runtime::NewTicket. `serial` is that of a process set. A batch is the number
// of a log record of its set.

// The background thread reports a tensor to the set's leader.
struct SubmittedEvent {
  int64_t time_ns = 0;
  int64_t enqueued_ns = 0;  // a thread of the framework asked for it
  int serial = 0;
  int set_id = 0;  // what users call the set by now
  uint64_t ticket = 0;
  uint64_t name = 0;  // its place in TraceChunk::names
  uint64_t instance = 0;
  int64_t step = 0;
  Verb verb = Verb::kAllreduce;
  DataType dtype = DataType::kFloat32;
  int64_t bytes = 0;  // of this rank's input
};

// The log says that these travel now.
struct AgreedEvent {
  int64_t time_ns = 0;
  int serial = 0;
  uint64_t batch = 0;
  std::vector<uint64_t> tickets;
};

// What a batch went through.
enum class Carrier : uint8_t {
  kMpi = 0,   // at least between hosts
  kShm = 1,   // shared memory only
  kGpus = 2,  // by the library of the GPUs
};
inline constexpr uint8_t kCarrierCount = 3;

// The wire is done with a batch.
struct FinishedEvent {
  int64_t time_ns = 0;
  int serial = 0;
  uint64_t batch = 0;
  bool is_ok = true;
  Carrier carrier = Carrier::kMpi;
  BatchTimes times;
};

// A tensor failed, or was cancelled, before the log agreed on it.
struct FailedEvent {
  int64_t time_ns = 0;
  uint64_t ticket = 0;
};

// The background thread took what had been enqueued.
struct CycleEvent {
  int64_t time_ns = 0;
};

using TraceEvent = std::variant<SubmittedEvent, AgreedEvent, FinishedEvent,
                                FailedEvent, CycleEvent>;

struct TraceChunk {
  uint64_t dropped = 0;  // events for which there was no room
  std::vector<std::string> names;
  std::vector<TraceEvent> events;
};

// Makes a chunk's bytes, event by event. Times are written as differences, so
// an event takes some ten bytes.
class TraceEncoder {
 public:
  // A name's place. It is written out when it comes for the first time.
  uint64_t NameOf(const std::string& name);
  void Add(const SubmittedEvent& event);
  void Add(const AgreedEvent& event);
  void Add(const FinishedEvent& event);
  void Add(const FailedEvent& event);
  void Add(const CycleEvent& event);

  bool empty() const { return writer_.size() == 0; }
  size_t size_bytes() const { return writer_.size(); }
  // The chunk. The next one begins empty.
  std::string Take(uint64_t dropped);

 private:
  // The kind's byte, and a time.
  void Begin(uint8_t kind, int64_t time_ns);
  void Ticket(uint64_t ticket);

  Writer writer_;
  std::unordered_map<std::string, uint64_t> names_;
  int64_t last_ns_ = 0;
  uint64_t last_ticket_ = 0;
};

[[nodiscard]] Result<TraceChunk> DecodeTrace(const std::string& bytes);

}  // namespace hvd

#endif  // HVD_CORE_TRACE_EVENTS_H_
