// SPDX-License-Identifier: Apache-2.0
// Lists the segments of a batch, by the rules of its verb.
#include "core/executor_batch.h"

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "core/quoted.h"
#include "core/rows.h"
#include "core/verbs/verb_rules.h"
#include "cpu/finite.h"

namespace hvd {
namespace {

// The framework finds the memory. If it finds none, only the batch fails.
template <typename Allocate>
Status WithMemory(const Allocate& allocate) {
  try {
    return allocate();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("this rank has no memory for the result.");
  }
}

// A verb that only moves data moves bytes, so that tensors of different types
// fuse.
int64_t UnitsPerElement(const Signature& signature) {
  return RulesOf(signature.verb).reduces
             ? 1
             : static_cast<int64_t>(SizeOf(signature.dtype));
}

Batch HeadOf(const Signature& signature) {
  Batch batch;
  batch.verb = signature.verb;
  batch.memory = signature.memory;
  if (RulesOf(signature.verb).reduces) {
    batch.dtype = signature.dtype;
    batch.wire_dtype = signature.wire_dtype;
    batch.reduce_op = signature.reduce_op;
    batch.prescale = signature.prescale;
    batch.postscale = signature.postscale;
    batch.id_dtype = signature.id_dtype;
    batch.sparse_algo = signature.sparse_algo;
  } else {
    batch.dtype = batch.wire_dtype = DataType::kUint8;
  }
  batch.root = signature.root;
  return batch;
}

// Batch::find_not_finite for entries whose types the transport does not know.
int FindNotFinite(const ReadyBatch& ready,
                  const std::vector<Segment>& segments) {
  size_t segment = 0;
  for (const Outstanding& tensor : ready.tensors) {
    const Signature& signature = tensor.entry->request.signature;
    for (const Shape& shape : signature.shapes) {
      const void* const in = segments[segment].in;
      if (in != nullptr && !AllFinite(signature.dtype, in, CountOf(shape))) {
        return static_cast<int>(segment);
      }
      ++segment;
    }
  }
  return -1;
}

// The same for a batch that is reduced, or a piece of it.
int FindNotFiniteOnWire(const Batch& head,
                        const std::vector<Segment>& segments) {
  for (size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    if (segment.in != nullptr &&
        !AllFiniteOnWire(head.dtype, head.wire_dtype, segment.in, segment.count,
                         head.prescale)) {
      return static_cast<int>(s);
    }
  }
  return -1;
}

// Whether tensors of so many rows in all fit into memory's numbers.
bool Fits(const Signature& signature, const Shape& shape,
          const std::vector<int64_t>& rows) {
  int64_t bytes = RowCount(shape);
  int64_t total = 0;
  for (int64_t count : rows) {
    if (count < 0 || __builtin_add_overflow(total, count, &total)) return false;
  }
  const auto element_bytes = static_cast<int64_t>(SizeOf(signature.dtype));
  return !__builtin_mul_overflow(bytes, total, &bytes) &&
         !__builtin_mul_overflow(bytes, element_bytes, &bytes);
}

// Allocates the outputs of one entry. `rows` are those of its shapes.
Status AllocateEntry(const Outstanding& tensor, RankCountsSpan rows,
                     std::vector<void*>* outputs) {
  const Signature& signature = tensor.entry->request.signature;
  std::vector<Shape> shapes = signature.shapes;
  if (tensor.cancelled) {
    outputs->insert(outputs->end(), shapes.size() * BuffersOf(signature.verb),
                    nullptr);
    return Status::Ok();
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::vector<int64_t>& of_ranks = rows[static_cast<int64_t>(i)];
    if (!Fits(signature, shapes[i], of_ranks)) {
      return ResourceExhausted(
          "the result has more rows than memory can have.");
    }
    shapes[i][0] = 0;
    for (int64_t count : of_ranks) shapes[i][0] += count;
  }
  Entry& entry = *tensor.entry;
  HVD_RETURN_IF_ERROR(
      WithMemory([&] { return entry.allocate(shapes, rows, &entry.outputs); }));
  outputs->insert(outputs->end(), entry.outputs.begin(), entry.outputs.end());
  return Status::Ok();
}

// An alltoall sends a rank that has joined nothing. Only the sender knows.
Status CheckSplits(const Entry& entry, const std::vector<int>& absent) {
  for (const std::vector<int64_t>& rows : entry.splits) {
    for (int rank : absent) {
      const int64_t count = rows[static_cast<size_t>(rank)];
      if (count == 0) continue;
      return InvalidArgument(
          Quoted(entry.request.key.name) + " sends " + std::to_string(count) +
          " rows to rank " + std::to_string(rank) +
          " of its process set, which has called hvd.join(), so they would be "
          "lost; send it none.");
    }
  }
  return Status::Ok();
}

// Batch::allocate for entries whose outputs have rows of all ranks.
Status AllocateAll(const ReadyBatch& ready, const RankCounts& rows,
                   std::vector<void*>* outputs) {
  const std::vector<int64_t>* first = rows.data();
  for (const Outstanding& tensor : ready.tensors) {
    const auto count =
        static_cast<int64_t>(tensor.entry->request.signature.shapes.size());
    HVD_RETURN_IF_ERROR(AllocateEntry(tensor, {first, count}, outputs));
    first += count;
  }
  return Status::Ok();
}

}  // namespace

Batch MakeBatch(const ReadyBatch& ready, bool check_finite) {
  const std::vector<Outstanding>& tensors = ready.tensors;
  const Signature& head = tensors[0].entry->request.signature;
  const VerbRules& rules = RulesOf(head.verb);
  Batch batch = HeadOf(head);
  batch.check_finite = check_finite;
  batch.divisor = ready.divisor;
  batch.has_absent = !ready.absent.empty();
  batch.segments.reserve(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Entry& entry = *tensors[t].entry;
    const Signature& signature = entry.request.signature;
    const int64_t units = UnitsPerElement(signature);
    for (size_t i = 0; i < signature.shapes.size(); ++i) {
      const Shape& shape = signature.shapes[i];
      Segment segment;
      segment.in = entry.inputs[i * BuffersOf(signature.verb)];
      if (rules.has_ids) {
        segment.ids = entry.inputs[i * 2 + 1];
        segment.table_rows = signature.table_rows[i];
        if (!entry.groups.empty()) segment.groups = entry.groups[i];
      }
      segment.count = CountOf(shape) * units;
      segment.name = &entry.request.key.name;
      segment.ready = entry.ready;
      if (!shape.empty()) {
        segment.rows = shape[0];
        segment.row_count = RowCount(shape) * units;
      }
      if (!rules.first_dim_varies && !tensors[t].cancelled) {
        segment.out = entry.outputs[i];
      }
      batch.segments.push_back(std::move(segment));
    }
    if (batch.local_error.ok()) {
      batch.local_error = CheckSplits(entry, ready.absent);
    }
    const RankCounts& rows =
        entry.splits.empty() ? ready.first_dims[t] : entry.splits;
    batch.rows.insert(batch.rows.end(), rows.begin(), rows.end());
  }
  const bool finds = check_finite && rules.finite_check == FiniteCheck::kInput;
  if (finds && rules.reduces) {
    batch.find_not_finite =
        [head = HeadOf(head)](const std::vector<Segment>& segments) {
          return FindNotFiniteOnWire(head, segments);
        };
  } else if (finds) {
    batch.find_not_finite = [&ready](const std::vector<Segment>& segments) {
      return FindNotFinite(ready, segments);
    };
  }
  if (rules.first_dim_varies) {
    batch.allocate = [&ready](const RankCounts& rows,
                              std::vector<void*>* outputs) {
      return AllocateAll(ready, rows, outputs);
    };
  }
  return batch;
}

}  // namespace hvd
