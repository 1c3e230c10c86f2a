// SPDX-License-Identifier: Apache-2.0
// Transport: the data plane of one process set over one kind of memory.
#ifndef HVD_CORE_TRANSPORT_H_
#define HVD_CORE_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/types.h"

namespace hvd {

// One tensor of a batch. `out` may equal `in`. `count` is this rank's.
struct Segment {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;
};

// What travels together: a scatter list and what to do with it.
//
// The same on every rank of the set but for the pointers, `local_error` and,
// in an allgather, Segment::count.
struct Batch {
  Verb verb = Verb::kAllreduce;
  DataType dtype = DataType::kFloat32;
  // allreduce: the type that crosses the wire; sums are formed in at least
  // float32 whatever it is.
  DataType wire_dtype = DataType::kFloat32;
  // kAverage: the sum is divided by the size of the set.
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;   // each input is multiplied by it
  double postscale = 1.0;  // the reduced value is multiplied by it
  int root = 0;            // broadcast: rank within the set
  std::vector<Segment> segments;
  // allgather: elements of [segment][rank]; out holds the ranks' parts of a
  // segment one after another.
  std::vector<std::vector<int64_t>> counts;
  // Not Ok: this rank cannot take part (no memory for an output, say). It
  // still starts the batch, which then fails on every rank, naming this one.
  Status local_error;
};

// The pieces that a transport cuts its batches into, for whoever tunes them.
struct PieceLimits {
  int64_t bytes = 0;       // now; 0: there is nothing to tune
  int64_t most_bytes = 0;  // what there is memory for
  std::string knob;        // the variable that sets them
};

using BatchId = uint64_t;
using BatchDone = std::function<void(const Status&)>;

// Contract, checked for every transport by tests/core/transport_test.cc:
// - All calls come from one thread, the runtime's background thread.
// - No call blocks on a peer. Start and Progress may be called from a done
//   callback of any transport, Progress of the same transport excepted.
// - Ranks of a set start the same batches in the same order; batches may
//   finish in any order, and a large one does not hold up a small one.
// - Transports of different sets are independent: started in opposite order
//   on two ranks they finish, and a frozen set does not stop another.
// - `done` is called exactly once per Start, from Progress or Cancel. With Ok
//   the outputs are complete. When it has been called the segments' memory is
//   not touched again.
// - A batch that one rank cancels or starts with a local_error never delivers
//   wrong numbers: on the others it completes with the right ones or fails with
//   a Status naming that rank (an allreduce with a local_error always fails),
//   and the set goes on.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual BatchId Start(Batch batch, BatchDone done) = 0;

  // Moves what can be moved without waiting. True if anything moved.
  virtual bool Progress() = 0;

  // Ends the batch here with `why`. Unknown or finished ids are ignored.
  virtual void Cancel(BatchId id, const Status& why) = 0;

  // Results do not depend on the size of pieces, but every member must set it,
  // up to most_bytes, between the same two batches; it holds for those started
  // from then on.
  virtual PieceLimits piece_limits() const { return {}; }
  virtual void SetPieceBytes(int64_t) {}

  // Batches started here that still need Progress: not done, or done here but
  // still serving their peers.
  virtual int in_flight() const = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_TRANSPORT_H_
