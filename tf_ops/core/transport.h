// SPDX-License-Identifier: Apache-2.0
// Transport: the data plane of one process set over one kind of memory.
#ifndef HVD_CORE_TRANSPORT_H_
#define HVD_CORE_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/batch_times.h"
#include "core/comm_stats.h"
#include "core/rows.h"
#include "core/status.h"
#include "core/types.h"
#include "cpu/row_groups.h"

namespace hvd {

// One tensor of a batch. `out` may equal `in`. `count` is this rank's count.
//
// A rank that has joined takes part without a tensor: `in` is null. It puts in
// the identity of the reduction, such as 0 for a sum. What is written to a null
// `out` is dropped.
struct Segment {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  // The tensor's, for errors; null: it has none.
  const std::string* name = nullptr;
  // For verbs that divide a tensor at rows: this rank's rows, and the elements
  // of one. `count` is their product.
  int64_t rows = 0;
  int64_t row_count = 1;
  // Sparse allreduce: an id of each row, ascending, each once, and below
  // `table_rows` unless that is -1. The result has one row for each id of any
  // rank; their ids go to `out_ids`. Ids are in host memory, wherever rows are.
  const void* ids = nullptr;
  void* out_ids = nullptr;
  int64_t table_rows = -1;
  // Sparse allreduce in a GPU's memory. Not null: `in` has a row for each of
  // the groups' places, and this rank's rows are the sums of these groups.
  std::shared_ptr<const RowGroups> groups = nullptr;
  // Opaque to all but the lane of the batch's memory: `in` may be read once
  // this is so. Null: it may be read now.
  std::shared_ptr<const void> ready = nullptr;
};

// Tensors that travel together, and what is done with them.
//
// It is the same on every rank of the set, but for the pointers, `local_error`,
// the functions, `check_finite`, `partners`, and what is measured. In an
// allgather, sparse allreduce or alltoall Segment::count may differ too, and in
// an alltoall `rows`.
//
// | verb             | `in` has     | `out` gets                              |
// | allreduce        | count        | count                                   |
// | broadcast        | count        | count                                   |
// | allgather        | own rows     | the ranks' rows, in rank order          |
// | alltoall         | rows for all | the rows for this rank, in rank order   |
// | reducescatter    | count        | rows ScatteredRows of the reduced tensor|
// | sparse allreduce | own rows     | a reduced row for each id of any rank   |
struct Batch {
  Verb verb = Verb::kAllreduce;
  MemoryKind memory = MemoryKind::kHost;
  DataType dtype = DataType::kFloat32;
  // Verbs that reduce: the type that crosses the wire. Sums are formed in
  // float32 at least, whatever this type is.
  DataType wire_dtype = DataType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  // kAverage: what the sum is divided by. 0: the size of the set.
  int64_t divisor = 0;
  double prescale = 1.0;   // each input is multiplied by it
  double postscale = 1.0;  // the reduced value is multiplied by it
  int root = 0;            // broadcast: rank within the set
  // Allreduce: the ranks of the set that reduce among themselves, ascending.
  // Each rank is in one such group, whose tensors may differ from those of
  // other groups. Errors of a rank reach its group. Empty: all ranks do.
  std::vector<int> partners;
  // A rank has joined, and has no tensor in it.
  bool has_absent = false;
  // Sparse allreduce: the type of the ids, kInt32 or kInt64.
  DataType id_dtype = DataType::kInt64;
  SparseAlgo sparse_algo = SparseAlgo::kAuto;
  std::vector<Segment> segments;
  // Rows of [segment][rank]. Allgather and sparse allreduce: that the rank puts
  // in. Empty: nobody knows them all, so the ranks tell each other. Alltoall:
  // that this rank sends to the rank; `in` has them in rank order, and maybe
  // more.
  RankCounts rows;
  // Allgather and alltoall. Gives the outputs, one for each segment, once it is
  // known how many rows come from which rank: [segment][rank]. Sparse
  // allreduce: `out` and `out_ids` of each segment, once it is known how many
  // rows the result has: [segment][0]. Called at most once, by Start or
  // Progress, and never after `done`. If it fails, that is a local_error.
  // Empty: the segments have their outputs.
  std::function<Status(const RankCounts& rows, std::vector<void*>* outputs)>
      allocate;
  // Empty: the inputs may be read now. Else the transport reads none before
  // this has said true. Progress asks it again and again. Meanwhile the batch
  // has its place in the order, and may be cancelled.
  std::function<bool()> inputs_are_ready;
  // The batch's inputs may come long after those of hundreds of batches behind
  // it, which do not wait for it. Long batches of a set run one after another.
  bool is_long = false;
  // Not Ok: this rank cannot take part, for example for lack of memory. It
  // still starts the batch. The batch then fails on every rank, with an error
  // that names this rank.
  Status local_error;
  // Verbs that reduce: a NaN or an infinity in this rank's input, as it crosses
  // the wire, fails the batch on every rank. The error names the rank and the
  // tensor. Other ranks need not check.
  bool check_finite = false;
  // Verbs that only move data, whose types the transport does not know, and
  // reducescatter, whose blocks go to one rank each. Not empty: finds the first
  // segment whose `in` has such a value, or -1. Asked at most once, when the
  // inputs may be read. The batch then fails in the same way, but for ranks
  // that get no rows of a reducescatter.
  std::function<int(const std::vector<Segment>&)> find_not_finite;
  // Not null: gets what this rank sends. It outlives the transport.
  VerbCounters* counters = nullptr;
  // Not null: gets when the batch moves here.
  std::shared_ptr<BatchTimes> times;
};

// The size of the chunks that a transport cuts its batches into, for tuning.
struct ChunkLimits {
  int64_t bytes = 0;       // in use; 0: nothing to tune
  int64_t most_bytes = 0;  // that there is memory for
  std::string knob;        // the variable that sets them
};

using BatchId = uint64_t;
using BatchDone = std::function<void(const Status&)>;

// Contract, checked for every transport by tests/core/transport_test.cc:
// - All calls come from one thread, the runtime's background thread.
// - No call blocks on a peer. A done callback may call Start and Progress of
//   any transport, but not Progress of its own.
// - Ranks of a set start the same batches in the same order. Batches may finish
//   in any order. A large one does not hold up a small one.
// - Transports of different sets are independent. Two ranks may start their
//   batches in opposite order, and both finish. A frozen set does not stop
//   another one.
// - `done` is called exactly once for each Start, from Progress or Cancel. With
//   Ok the outputs are complete. After that the memory of the segments is not
//   touched again.
// - A batch that one rank cancels, or starts with a local_error, never delivers
//   wrong numbers. On the other ranks it completes with the right ones, or
//   fails with a Status that names that rank. An allreduce with a local_error
//   always fails. The set goes on.
// - In a GPU's memory outputs may be complete in the order of the framework's
//   stream: what it is given after `done` finds them, and the segments' memory
//   is free for that.
// - In a GPU's memory a batch that is cancelled may be done later, when the
//   GPU no longer touches its memory. Progress calls `done` then.
// - A batch may have several phases, such as the sizes and then the data. All
//   of the above holds in each of them, and between two.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Whether its data goes through the memory of one host only.
  virtual bool within_host() const { return false; }

  virtual BatchId Start(Batch batch, BatchDone done) = 0;

  // Moves what can be moved without waiting. True if anything moved.
  virtual bool Progress() = 0;

  // Ends the batch here with `why`. Unknown or finished ids are ignored.
  virtual void Cancel(BatchId id, const Status& why) = 0;

  // The size of chunks, up to most_bytes. It does not change results. Every
  // member must set it between the same two batches. It holds for batches that
  // are started afterwards.
  virtual ChunkLimits chunk_limits() const { return {}; }
  virtual void SetChunkBytes(int64_t) {}

  // The ranks have met here in the order of batches: see LaneOwner. Where one
  // has joined, and had not asked, `all_came` is false on every rank.
  virtual void Meet(bool all_came) { (void)all_came; }

  // A member ends. It serves what it has started for some seconds, unless it
  // has failed. A transport whose peers cannot tell that they drop out of a
  // batch ends what is left then, with `why`.
  virtual void MemberEnded(const Status& why, bool has_failed) {
    (void)why;
    (void)has_failed;
  }

  // Progress is not called any more. What a GPU still does with peers is broken
  // off, because memory cannot be given back before that: also that of other
  // transports. So all of a job are closed before one of them goes.
  virtual void Close(const Status& why) { (void)why; }

  // How many batches of this rank still need Progress. They are not done, or
  // they are done here but still serve their peers.
  virtual int in_flight() const = 0;
  // How many of these the transport has started for its own use.
  virtual int own_in_flight() const { return 0; }
  // How many batches in flight the batch stands for. A batch of a GPU counts
  // those that it has on the host transport. A batch of the host is one until
  // it has left the wire, then none.
  virtual int count_of(BatchId) const { return 1; }

  // Batches that a GPU still has to do with, in the order of Start. Those that
  // only wait for the hosts of peers are none of these.
  virtual std::vector<BatchId> with_gpu() const { return {}; }
  // Whether this rank's GPU has not come to such a batch, or copies it. Else
  // GPUs do it among themselves, and this one may wait for a peer's.
  virtual bool waits_for_own_gpu(BatchId) const { return false; }
};

}  // namespace hvd

#endif  // HVD_CORE_TRANSPORT_H_
