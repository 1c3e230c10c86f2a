// SPDX-License-Identifier: Apache-2.0
// Executor: executes a set's agreed batches, each on the lane of its memory.
#ifndef HVD_CORE_EXECUTOR_H_
#define HVD_CORE_EXECUTOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/lanes.h"
#include "core/ready_batch.h"
#include "core/status.h"
#include "core/transport.h"
#include "core/tuning.h"

namespace hvd {

class Trace;

// Hands each batch to the transport of its memory. When the wire is done, it
// calls each entry's done, or leaves that to the entry's runner. A verb that
// uses no wire is done at once. Background thread only.
class Executor {
 public:
  using Clock = std::chrono::steady_clock;

  // `check_finite`: a call with a NaN or an infinity fails, but a broadcast.
  explicit Executor(LaneTable lanes, bool check_finite = false);
  ~Executor();

  // Gets what happens to batches of the set. Null: nobody does.
  void TellTo(Trace* trace, int serial) {
    trace_ = trace;
    serial_ = serial;
  }

  // If there is no memory for it, its entries fail, and std::bad_alloc leaves.
  void Execute(ReadyBatch ready);
  bool Progress();
  ChunkLimits chunk_limits() const { return host().chunk_limits(); }
  // Holds for the batches executed from now on. The negotiator has checked it.
  void Tune(const Tuning& tuning);
  int in_flight() const;
  // Those that were executed.
  int executed_in_flight() const;
  // The batches that a peer may still need: all but those ended by CancelAfter.
  int needed_in_flight() const;

  // See Transport::with_gpu.
  struct OnGpu {
    const Transport* lane;
    BatchId id;
  };

  // A batch that failed although all ranks were well. The lane is broken.
  struct Breakdown {
    uint64_t log_number;
    Status status;
  };
  const std::optional<Breakdown>& breakdown() const { return breakdown_; }
  // executor_ends.cc: the same for one whose GPU does not end it.
  void BreakDown(const OnGpu& batch, const Status& why);

  // The request of an entry on the wire whose done is still to be called. Null
  // if there is none of that ticket.
  const Request* FindRunning(uint64_t ticket) const;

  // executor_ends.cc: nobody waits for this entry of FindRunning any more. Once
  // that holds for all entries of its batch, the batch has until `limit`. Then
  // EndUnwanted ends it here with `why`.
  void Unwant(uint64_t ticket, const Status& why, Clock::time_point limit);
  void EndUnwanted(Clock::time_point now);

  // What is on the wire here.
  void AppendRunning(std::vector<std::string>* names) const;

  std::vector<OnGpu> on_gpus() const;
  // Those of its entries whose done is still to be called.
  std::vector<std::string> NamesOf(const OnGpu& batch) const;

  // See Transport::MemberEnded.
  void MemberEnded(const Status& why, bool has_failed);
  // See Transport::Close.
  void Close(const Status& why);

  // Ends the batches of log records behind `log_number`, because a member takes
  // no part in them. 0 ends all.
  void CancelAfter(uint64_t log_number, const Status& why);

  // The same for all batches, and their dones are called now, although a GPU
  // may still have to do with their memory. Nothing is executed afterwards.
  void Abandon(const Status& why);

 private:
  struct Running {
    Transport* lane;
    BatchId id;
    std::shared_ptr<const ReadyBatch> batch;
    // The number of its entries that nobody waits for, and what Unwant said.
    size_t unwanted = 0;
    Status why;
    Clock::time_point limit;
    // By CancelAfter. A GPU's lane may take some time to end it.
    bool is_cancelled = false;
  };

  // What the trace gets to know of a batch in the end.
  struct Seen {
    int64_t rows = 0;                   // of outputs that are allocated late
    std::shared_ptr<BatchTimes> times;  // null: nobody wants them
    bool within_host = false;
  };
  using Allocate = decltype(Batch::allocate);
  // The same, and counts the rows that somebody gets.
  static Allocate CountingRows(Allocate allocate,
                               std::shared_ptr<const ReadyBatch> work,
                               std::shared_ptr<Seen> seen);

  void Begin(const std::shared_ptr<const ReadyBatch>& work);
  void NoteBreakdown(uint64_t number, const Status& status);
  // The wire is done with the batch. Answers each entry, and then throws
  // std::bad_alloc if it was without memory.
  void Finish(const std::shared_ptr<const ReadyBatch>& work, const Seen& seen,
              const Status& status);
  void NoteFinished(const ReadyBatch& work, const Seen& seen,
                    const Status& status);
  Transport& host() const { return *lanes_.of(MemoryKind::kHost); }

  const bool check_finite_;
  Trace* trace_ = nullptr;
  int serial_ = 0;
  const LaneTable lanes_;
  std::map<uint64_t, Running> running_;  // by log number
  // By CancelAfter: batches of the host's lane, some of which may leave the
  // wire in spite of it, and how many of in_flight() those of GPUs were.
  std::vector<BatchId> cancelled_on_host_;
  int cancelled_on_gpus_ = 0;
  std::optional<Breakdown> breakdown_;  // the one with the lowest number
};

}  // namespace hvd

#endif  // HVD_CORE_EXECUTOR_H_
