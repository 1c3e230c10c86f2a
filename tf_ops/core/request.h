// SPDX-License-Identifier: Apache-2.0
// Request: what a rank asks for. Entry: what it keeps with its request.
#ifndef HVD_CORE_REQUEST_H_
#define HVD_CORE_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/rows.h"
#include "core/status.h"
#include "core/types.h"
#include "cpu/row_groups.h"

namespace hvd {

// Identifies an entry in flight. Ranks match each other's requests by it.
//
// A loop runs the one node in its body many times. `instance` tells the
// iterations apart. It is 0 outside loops.
struct Key {
  std::string name;
  uint64_t instance = 0;

  bool operator==(const Key& other) const {
    return instance == other.instance && name == other.name;
  }
  bool operator<(const Key& other) const {
    return name != other.name ? name < other.name : instance < other.instance;
  }
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    return std::hash<std::string>()(key.name) ^ (key.instance * 0x9e3779b9u);
  }
};

// The name of the barrier at which ranks meet for a lane of GPUs. No caller
// waits for it.
inline constexpr char kMeetingOfLanes[] = "hvd_tf.lane_of_gpus";

// The part of a Request that must be the same on every rank, or must follow the
// rule below. The response cache remembers it under a SignatureNumber.
//
// A grouped collective is one Signature with several shapes. It is agreed,
// travels and fails as a whole.
//
// core/verbs/ says which fields a verb uses, and what must be equal. The others
// keep their defaults.
struct Signature {
  Verb verb = Verb::kAllreduce;
  DataType dtype = DataType::kFloat32;
  // The element type on the wire. Under Compression it is float16 or bfloat16,
  // else dtype.
  DataType wire_dtype = DataType::kFloat32;
  MemoryKind memory = MemoryKind::kHost;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root = 0;  // rank within the process set
  std::vector<Shape> shapes;
  // A sparse allreduce alone. Each of its tensors has an id for each row:
  // int32 or int64, at least 0 and below the rows of its table, of which
  // there is one number for each shape. -1: not known.
  DataType id_dtype = DataType::kInt64;
  SparseAlgo sparse_algo = SparseAlgo::kAuto;
  std::vector<int64_t> table_rows;

  bool operator==(const Signature& other) const {
    return verb == other.verb && dtype == other.dtype &&
           wire_dtype == other.wire_dtype && memory == other.memory &&
           reduce_op == other.reduce_op && prescale == other.prescale &&
           postscale == other.postscale && root == other.root &&
           shapes == other.shapes && id_dtype == other.id_dtype &&
           sparse_algo == other.sparse_algo && table_rows == other.table_rows;
  }
};

// One collective as one rank asks for it. Crosses the wire.
struct Request {
  Key key;
  Signature signature;
  // The TensorFlow step of the entry, as numbered by its rank. 0: none, because
  // it is an eager op. Steps are aborted as a whole.
  int64_t step = 0;
  // Not Ok: this rank found the call invalid. The peers' entries must fail too.
  Status error;
};

// Runs a closure soon, on a thread of the framework.
using Runner = std::function<void(std::function<void()>)>;

// Has the buffers of one rank's part of a collective. Never crosses the wire.
//
// The caller fills it in and does not change it after Enqueue. `done` is called
// exactly once: on the background thread, by a runner, or on the caller's
// thread before Enqueue returns.
struct Entry {
  Request request;
  // From Runtime::NewTicket. Runtime::Cancel takes it.
  uint64_t ticket = 0;
  // The number under which the set has agreed on the request; 0: not known. The
  // background thread finds it. An entry that is submitted again may keep it if
  // runtime, set and name are the same, and SameButFirstDims holds.
  uint64_t signature_number = 0;
  // One for each shape of the signature. May be null where the count is 0.
  // A verb with ids has two for each: its rows and their ids, which are
  // ascending, each once.
  std::vector<const void*> inputs;
  // As many. Where the first dimension of the verb varies, it is empty until
  // `allocate` has been called.
  std::vector<void*> outputs;
  // Verbs with ids have these in a GPU's memory: see Segment::groups. One for
  // each shape, or none.
  std::vector<std::shared_ptr<const RowGroups>> groups;
  // An alltoall alone: the rows of [shape][rank of the set] that this rank
  // sends. Those of a shape add up to its first dimension or less.
  RankCounts splits;
  // For verbs whose first dimension varies. Allocates outputs of these shapes,
  // once all sizes are known. `rows` of [shape][rank] are what comes from each
  // rank. For a verb with ids they are of [shape][0], the rows of the result.
  // Never called after `done`.
  std::function<Status(const std::vector<Shape>& shapes, RankCountsSpan rows,
                       std::vector<void*>* outputs)>
      allocate;
  // See Segment::ready.
  std::shared_ptr<const void> ready;
  std::function<void(const Status&)> done;
  // Null: no runner calls `done`. Else it lives until `done` is called. It may
  // call `done`, and so may the runner of another entry of the batch.
  const Runner* runner = nullptr;
  // Set by Runtime::Enqueue while the timeline is on: SteadyNow_ns.
  int64_t enqueued_ns = 0;
};

// A rank that has no more tensors, and waits until all ranks have joined.
// Meanwhile the others go on, and this rank takes part without tensors.
//
// The caller fills it in. `done` is called exactly once, like an Entry's.
struct JoinCall {
  // From Runtime::NewTicket. Runtime::Cancel takes it.
  uint64_t ticket = 0;
  // `last_rank` of the set joined last.
  std::function<void(const Status&, int last_rank)> done;
};
using JoinCallPtr = std::shared_ptr<JoinCall>;

// The runtime holds an entry from Enqueue until the wire has let go of its
// buffers. If the step was aborted, that may be after `done`. The buffers must
// live as long. So let the pointer share the ownership of them.
using EntryPtr = std::shared_ptr<Entry>;

}  // namespace hvd

#endif  // HVD_CORE_REQUEST_H_
