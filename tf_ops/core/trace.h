// SPDX-License-Identifier: Apache-2.0
// Trace: where the engine's stages tell what happens to tensors.
#ifndef HVD_CORE_TRACE_H_
#define HVD_CORE_TRACE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/batch_times.h"
#include "core/comm_stats.h"
#include "core/ready_batch.h"
#include "core/request.h"
#include "core/status.h"
#include "core/trace_events.h"

namespace hvd {

class Autotuner;

// How a batch has ended.
struct BatchEnd {
  Status status;
  int64_t rows = 0;  // of outputs that were allocated late
  const BatchTimes* times = nullptr;
  bool within_host = false;  // it went through shared memory only
};

// Counts what has completed, and tells an Autotuner of the global set's
// batches. While it is on, it also notes every event, for the timeline. What is
// noted waits in memory of a bounded size until Take. Tensors for which there
// is no room are dropped and counted. A tensor that is noted has its end noted
// too, whatever the room: a reader would wait for it for ever.
//
// Owner: the Timeline. Background thread only, but for on().
class Trace {
 public:
  // Behind so many bytes since the last Take, only ends are noted.
  static constexpr size_t kMostBytes = 128 << 10;
  // So many tensors at a time are on their way and noted. It bounds the ends.
  static constexpr size_t kMostOpen = 65536;

  // `counters` outlives it.
  explicit Trace(CommCounters* counters) : counters_(counters) {}

  // Any thread. It costs nothing to ask.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  void Start(bool mark_cycles);
  // Notes no new tensors from now on, but the ends of the batches that are on
  // their way.
  void Close();
  void Stop();
  // Closed, and all of these ends are noted.
  bool is_complete() const { return is_closed_ && batches_.empty(); }

  // The stages of a tensor, in this order. `serial` is that of a process set.
  // Users call that set by `id`.
  void Submitted(int serial, int id, const Entry& entry);
  // The call failed, or was cancelled, before the log agreed on it.
  void Failed(const Entry& entry);
  void Agreed(int serial, const ReadyBatch& ready);
  // For the transport to fill in. Null where it does not wait for the batch's
  // end.
  std::shared_ptr<BatchTimes> NewTimes(int serial, uint64_t batch) const;
  void Finished(int serial, const ReadyBatch& ready, const BatchEnd& end);
  // The background thread took what had been enqueued.
  void Cycle();

  // From now on `autotuner` is told of the global set's batches. The set has
  // `size` ranks. Null: none is any more.
  void FeedTo(Autotuner* autotuner, int size);

  // What a transport counts of a verb's batches.
  VerbCounters* counters(Verb verb) { return &counters_->of(verb); }

  bool has_news() const { return !encoder_.empty() || dropped_ > 0; }
  // A TraceChunk's bytes: what was noted since the last call.
  std::string Take();

 private:
  // Whether there is room for an event. Counts it as dropped if not.
  bool HasRoom();
  void TellTuner(const ReadyBatch& agreed);

  CommCounters* const counters_;
  std::atomic<bool> on_{false};
  bool mark_cycles_ = false;
  bool is_closed_ = false;
  // What has begun in the trace and has not ended: tickets of tensors that are
  // not agreed yet, and, for each (set, batch), how many tensors it has.
  std::unordered_set<uint64_t> waiting_;
  std::map<std::pair<int, uint64_t>, size_t> batches_;
  size_t open_ = 0;  // tensors, in both
  uint64_t dropped_ = 0;
  TraceEncoder encoder_;
  Autotuner* autotuner_ = nullptr;
  int tuned_size_ = 0;  // ranks
};

}  // namespace hvd

#endif  // HVD_CORE_TRACE_H_
