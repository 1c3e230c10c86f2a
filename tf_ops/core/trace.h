// SPDX-License-Identifier: Apache-2.0
// Trace: where the engine's stages tell what happens to tensors.
#ifndef HVD_CORE_TRACE_H_
#define HVD_CORE_TRACE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

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
// noted waits in memory of a fixed size until Take. Events for which there is
// no room are dropped and counted.
//
// Owner: the Timeline. Background thread only, but for on().
class Trace {
 public:
  // The events between two calls of Take have so many bytes at most.
  static constexpr size_t kMostBytes = 128 << 10;

  // `counters` outlives it.
  explicit Trace(CommCounters* counters) : counters_(counters) {}

  // Any thread. It costs nothing to ask.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  void Start(bool mark_cycles);
  // Notes no new tensors from now on, but the ends of the batches that are on
  // their way.
  void Close();
  void Stop() { on_.store(false, std::memory_order_relaxed); }
  // Closed, and all of these ends are noted.
  bool is_complete() const { return is_closed_ && in_flight_ == 0; }

  // The stages of a tensor, in this order. A set is a process set's id.
  void Submitted(int set, const Entry& entry);
  // It failed, or was cancelled, before the log agreed on it.
  void Failed(const Entry& entry);
  void Agreed(int set, const ReadyBatch& ready);
  // For the transport to fill in. Null while it is off.
  std::shared_ptr<BatchTimes> NewTimes() const;
  void Finished(int set, const ReadyBatch& ready, const BatchEnd& end);
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
  int64_t start_ns_ = 0;
  int in_flight_ = 0;  // batches that have begun in the trace
  uint64_t dropped_ = 0;
  TraceEncoder encoder_;
  Autotuner* autotuner_ = nullptr;
  int tuned_size_ = 0;  // ranks
};

}  // namespace hvd

#endif  // HVD_CORE_TRACE_H_
