// SPDX-License-Identifier: Apache-2.0
// What a rank asks for (Request) and what it keeps beside it (Entry).
#ifndef HVD_CORE_REQUEST_H_
#define HVD_CORE_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/types.h"

namespace hvd {

// Identifies an entry in flight: ranks match each other's requests by it.
//
// `instance` tells apart the iterations of a loop whose body holds one node;
// it is 0 outside loops.
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

// The part of a Request that must be the same on every rank, or follow a known
// rule: it is what the response cache remembers under a small id.
//
// A grouped collective is one Signature with several shapes: it is agreed,
// travels and fails as a whole.
//
// | field        | allreduce | allgather             | broadcast  |
// | shapes       | equal     | equal but dimension 0 | equal      |
// | wire_dtype   | equal     | = dtype               | = dtype    |
// | reduce_op    | equal     | unused                | unused     |
// | prescale,    | equal     | unused                | unused     |
// | postscale    |           |                       |            |
// | root         | unused    | unused                | equal, a   |
// |              |           |                       | rank of the|
// |              |           |                       | set        |
struct Signature {
  Verb verb = Verb::kAllreduce;
  DataType dtype = DataType::kFloat32;
  // Element type on the wire: float16 or bfloat16 under Compression, else
  // dtype.
  DataType wire_dtype = DataType::kFloat32;
  MemoryKind memory = MemoryKind::kHost;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root = 0;  // rank within the process set
  std::vector<Shape> shapes;

  bool operator==(const Signature& other) const {
    return verb == other.verb && dtype == other.dtype &&
           wire_dtype == other.wire_dtype && memory == other.memory &&
           reduce_op == other.reduce_op && prescale == other.prescale &&
           postscale == other.postscale && root == other.root &&
           shapes == other.shapes;
  }
};

// One collective as one rank asks for it. Crosses the wire.
struct Request {
  Key key;
  Signature signature;
  // The TensorFlow step that the entry belongs to, local to its rank; 0 when
  // it belongs to none (an eager op). Steps are aborted as a whole.
  int64_t step = 0;
  // Not Ok: this rank found the call invalid; the peers' entry must fail too.
  Status error;
};

// Runs a closure soon, on a thread of the framework's.
using Runner = std::function<void(std::function<void()>)>;

// Where one rank's part of a collective lies. Never crosses the wire.
//
// Filled in by the caller and not changed by it once enqueued. `done` is called
// exactly once: on the background thread, by a runner, or, before Enqueue
// returns, on the caller's.
struct Entry {
  Request request;
  // From Runtime::NewTicket; names this entry to Runtime::Cancel.
  uint64_t ticket = 0;
  // One per shape of the signature; may be null where the count is 0.
  std::vector<const void*> inputs;
  // One per shape; empty for an allgather until `allocate` has been called.
  std::vector<void*> outputs;
  // Allgather only: allocates the outputs once all ranks' first dimensions are
  // known. Never called after done.
  std::function<Status(const std::vector<Shape>& shapes,
                       std::vector<void*>* outputs)>
      allocate;
  std::function<void(const Status&)> done;
  // Null: `done` is not left to a runner. Else lives until `done` is called;
  // then it may be, by this one or by that of another entry of the batch.
  const Runner* runner = nullptr;
};

// The runtime's hold of an entry: from Enqueue until the wire has let go of its
// buffers, which may be after done when the step was aborted. So the buffers
// must live as long: let it share the ownership of what has them.
using EntryPtr = std::shared_ptr<Entry>;

}  // namespace hvd

#endif  // HVD_CORE_REQUEST_H_
