// SPDX-License-Identifier: Apache-2.0
// Phase: one part of a batch's way over the wire, cut into chunks.
//
// Most batches have one phase. An alltoall first tells sizes and then moves
// data. Its second phase depends on what the first has brought, and its memory
// is asked for in between. All of that happens inside one Start of the
// transport, so its place in the order of batches does not change.
#ifndef HVD_TRANSPORT_COLLECTIVES_PHASE_H_
#define HVD_TRANSPORT_COLLECTIVES_PHASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transport/collectives/batch_work.h"
#include "transport/collectives/packer.h"
#include "transport/collectives/reducer.h"
#include "transport/collectives/segment_map.h"
#include "transport/wire.h"

namespace hvd {

class Chunk;

// An allgather moves a chunk of every rank at once, so its chunks are smaller.
// They are not smaller than this.
inline constexpr int64_t kSmallestGatherChunkBytes = 16 << 10;

// Every member of the set runs the same phases in the same order, each with
// chunks that match its peers', even if its batch is detached. So no member
// waits for a message in vain. A member may be a phase ahead of another.
//
// A phase that depends on what an earlier one has brought must not begin
// anywhere if it cannot begin everywhere. So a phase of sizes is one in which
// every rank hears all that any rank says, poison too.
//
// Owner: StagedTransport. Its BatchWork lives longer, and its chunks do not.
class Phase {
 public:
  // Makes the phase after a finished one. Null: there is none.
  using Next = std::function<std::unique_ptr<Phase>(const Phase& finished)>;

  // `bytes` are those of all elements that it moves here. `next` may be empty.
  Phase(BatchWork* work, Operands operands, int64_t bytes, Next next);
  virtual ~Phase() = default;
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  // At least 1, so that ranks hear of each other even if there is no element.
  virtual int64_t chunk_count() const = 0;
  virtual std::unique_ptr<Chunk> NewChunk(int64_t index) = 0;

  // To be called once, when the outputs of all chunks are done.
  std::unique_ptr<Phase> MakeNext() const;

  BatchWork* work() const { return work_; }
  const Packer& packer() const { return packer_; }
  const Reducer& reducer() const { return reducer_; }
  const HostMap& hosts() const { return work_->hosts(); }
  // Bytes of an element on the wire.
  int64_t element_bytes() const { return packer_.element_bytes(); }
  // The phase's place among those of the batch.
  int number() const { return number_; }

  // Whether its memory may be touched.
  bool has_memory() const {
    return !packer_.operands().is_callers || !work_->is_detached();
  }
  // To be called after data was packed or reduced. If a value was met that is
  // not finite, and that is asked for, the batch fails here and now. Returns
  // its poison.
  const Poison& FailIfNotFinite();

  // Whether any rank has said or heard poison in this phase.
  bool is_poisoned() const { return is_poisoned_; }
  void NotePoison() { is_poisoned_ = true; }

 private:
  BatchWork* const work_;
  Packer packer_;
  const Reducer reducer_;
  const Next next_;
  int number_ = 0;
  bool is_poisoned_ = false;
};

// Cuts `elements` elements of `element_bytes` into chunks.
struct ChunkPlan {
  // At most so many bytes a chunk.
  ChunkPlan(int64_t elements, int64_t element_bytes, int64_t chunk_bytes);
  // Makes room for more elements, of another rank.
  void Cover(int64_t elements);

  int64_t chunk_elements = 0;
  int64_t chunk_count = 1;
};

// The first phase of a batch, by its verb. The batch has been checked by
// CheckBatch. Null for a verb that uses no wire.
[[nodiscard]] std::unique_ptr<Phase> NewFirstPhase(BatchWork* work);
// That of each verb, in a file of its name.
#define HVD_DECLARE_FIRST_PHASE(verb, number, text) \
  std::unique_ptr<Phase> New##verb##FirstPhase(BatchWork* work);
HVD_FOR_EACH_VERB(HVD_DECLARE_FIRST_PHASE)
#undef HVD_DECLARE_FIRST_PHASE
// That of an allreduce by ReduceOp::kAdasum.
std::unique_ptr<Phase> NewAdasumFirstPhase(BatchWork* work);

// --- Phases that others are made of. `ins` and `outs` are elements of the
// operands' inputs and outputs.

// Every rank's operands, the same elements on all, are reduced on all ranks.
[[nodiscard]] std::unique_ptr<Phase> NewAllreducePhase(BatchWork* work,
                                                       Operands operands,
                                                       Phase::Next next);
// `outs` has for each rank where its elements go. Those of this rank are `in`
// in the inputs.
[[nodiscard]] std::unique_ptr<Phase> NewAllgatherPhase(
    BatchWork* work, Operands operands, SegmentMap in,
    std::vector<SegmentMap> outs, Phase::Next next);
// `ins` has for each rank what goes there, `outs` for each rank where that
// rank's elements go. What ins[a] is on rank b, outs[b] is on rank a.
[[nodiscard]] std::unique_ptr<Phase> NewAlltoallPhase(
    BatchWork* work, Operands operands, std::vector<SegmentMap> ins,
    std::vector<SegmentMap> outs, Phase::Next next);

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_PHASE_H_
