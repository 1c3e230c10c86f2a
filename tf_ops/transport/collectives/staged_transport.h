// SPDX-License-Identifier: Apache-2.0
// StagedTransport: the collectives over any Wire, through staging memory.
#ifndef HVD_TRANSPORT_COLLECTIVES_STAGED_TRANSPORT_H_
#define HVD_TRANSPORT_COLLECTIVES_STAGED_TRANSPORT_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "core/transport.h"
#include "cpu/spare_cores.h"
#include "transport/collectives/batch_work.h"
#include "transport/collectives/chunk.h"
#include "transport/collectives/phase.h"
#include "transport/staging_pool.h"
#include "transport/wire.h"

namespace hvd {

inline constexpr int64_t kDefaultChunkBytes = 1 << 20;

// The chunks of a transport whose staging memory is on the heap.
[[nodiscard]] ChunkLimits HeapChunks(int64_t bytes);

// Runs a batch phase by phase, and each phase chunk by chunk. A few chunks are
// on the wire at a time. Progress goes through all batches, so that a small one
// passes a large one.
//
// The wire uses staging memory only. So a batch that fails here can let go of
// the user's memory at once. It lives on, detached. A detached batch sends its
// peers poison, or the data that it still has for them, until all have finished
// the batch.
class StagedTransport final : public Transport {
 public:
  // `job_ranks` are the members' ranks of the job, for messages. `chunks` must
  // be the same on all members. `spare_cores` may be null.
  StagedTransport(std::unique_ptr<Wire> wire, std::vector<int> job_ranks,
                  ChunkLimits chunks = HeapChunks(kDefaultChunkBytes),
                  std::shared_ptr<SpareCores> spare_cores = nullptr);
  ~StagedTransport() override;

  int rank() const override { return wire_->rank(); }
  int size() const override { return wire_->size(); }
  bool within_host() const override;
  BatchId Start(Batch batch, BatchDone done) override;
  bool Progress() override;
  void Cancel(BatchId id, const Status& why) override;
  ChunkLimits chunk_limits() const override { return chunks_; }
  void SetChunkBytes(int64_t bytes) override { chunks_.bytes = bytes; }
  int in_flight() const override;
  int count_of(BatchId id) const override {
    const auto found = flights_.find(id);
    return found != flights_.end() && Counts(found->second) ? 1 : 0;
  }

 private:
  struct Flight {
    std::unique_ptr<BatchWork> work;  // null: CheckBatch refused it
    BatchDone done;                   // null once called
    Status status;                    // not Ok: why it failed here
    // The last one is running. Of the others, peers may still need chunks.
    // Empty: its inputs may not be read yet.
    std::vector<std::unique_ptr<Phase>> phases;
    // In the running phase: the next chunk to start, and the outputs done.
    int64_t next_chunk = 0;
    int64_t outputs_done = 0;
    bool complete = false;  // all outputs of all phases
    // No memory was left in the middle of the start of a chunk. It may be on
    // the wire, and is not touched any more.
    bool is_broken = false;
    std::deque<std::unique_ptr<Chunk>> chunks;  // on the wire

    Phase* phase() const { return phases.back().get(); }
  };
  using Flights = std::map<BatchId, Flight>;
  struct Call {
    BatchDone done;
    Status status;
  };

  // Begins the first phase if the inputs may be read. True: it has begun.
  bool TryBegin(Flight* flight) const;
  bool AdvanceFlight(BatchId id, Flight* flight);
  bool StartChunks(BatchId id, Flight* flight);
  static bool IsLong(const Flight& flight);
  // The oldest of the batches that are not long.
  BatchId Oldest() const;
  bool HasLongBefore(BatchId id) const;
  // Throws std::bad_alloc where the oldest batch can wait for nobody's memory.
  void CheckMemoryWillCome(Urgency urgency) const;
  // Goes on to the next phase if the running one has all its outputs.
  void EndPhase(Flight* flight);
  // If the batch is done for its caller, adds the call of `done`, which is made
  // later.
  void TakeDone(Flight* flight, std::vector<Call>* calls);
  bool Finished(const Flight& flight) const;
  // Whether the batch is one of in_flight().
  bool Counts(const Flight& flight) const {
    return wire_->status().ok() || flight.done != nullptr;
  }
  bool FailAll(const Status& why, std::vector<Call>* calls);

  const std::vector<int> job_ranks_;
  ChunkLimits chunks_;
  const std::shared_ptr<SpareCores> spare_cores_;
  std::unique_ptr<Wire> wire_;
  BatchId next_id_ = 1;
  Flights flights_;  // started, and not finished here
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_STAGED_TRANSPORT_H_
