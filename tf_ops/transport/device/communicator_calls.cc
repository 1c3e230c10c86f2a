// SPDX-License-Identifier: Apache-2.0
// Lists calls, segment by segment. Where ranks' parts are alike it is one call
// of all ranks, else one for each part.
#include "transport/device/communicator_calls.h"

#include <algorithm>
#include <cstddef>

namespace hvd {
namespace {

using Kind = CommunicatorCall::Kind;

const void* At(const void* begin, int64_t bytes) {
  return begin == nullptr ? nullptr
                          : static_cast<const std::byte*>(begin) + bytes;
}

void* At(void* begin, int64_t bytes) {
  return begin == nullptr ? nullptr : static_cast<std::byte*>(begin) + bytes;
}

// Lists the calls of one segment after another.
class Lister {
 public:
  Lister(const Batch& batch, int rank, int size, CommunicatorCalls* calls)
      : batch_(batch),
        element_bytes_(static_cast<int64_t>(SizeOf(batch.dtype))),
        rank_(rank),
        size_(size),
        calls_(calls) {}

  void Allreduce(const Segment& segment) {
    Add({Kind::kAllreduce, 0, segment.in, segment.out, segment.count});
  }

  void Broadcast(const Segment& segment) {
    Add({Kind::kBroadcast, batch_.root, segment.in, segment.out,
         segment.count * element_bytes_});
  }

  void Reducescatter(const Segment& segment) {
    if (segment.rows % size_ == 0) {
      Add({Kind::kReducescatter, 0, segment.in, segment.out,
           segment.rows / size_ * segment.row_count});
      return;
    }
    for (int to = 0; to < size_; ++to) {
      const RowRange rows = ScatteredRows(segment.rows, to, size_);
      Add({Kind::kReduce, to,
           At(segment.in, rows.begin * segment.row_count * element_bytes_),
           to == rank_ ? segment.out : nullptr,
           rows.size() * segment.row_count});
    }
  }

  void Allgather(const Segment& segment, void* out,
                 const std::vector<int64_t>& rows) {
    const int64_t row_bytes = segment.row_count * element_bytes_;
    if (std::all_of(rows.begin(), rows.end(),
                    [&](int64_t count) { return count == rows[0]; })) {
      Add({Kind::kAllgather, 0, segment.in, out, rows[0] * row_bytes});
      return;
    }
    for (int from = 0; from < size_; ++from) {
      const int64_t bytes = rows[static_cast<size_t>(from)] * row_bytes;
      Add({Kind::kBroadcast, from, segment.in, out, bytes});
      out = At(out, bytes);
    }
  }

  void Alltoall(const Segment& segment, void* out,
                const std::vector<int64_t>& sent,
                const std::vector<int64_t>& received) {
    const int64_t row_bytes = segment.row_count * element_bytes_;
    const void* in = segment.in;
    for (int peer = 0; peer < size_; ++peer) {
      const int64_t to = sent[static_cast<size_t>(peer)] * row_bytes;
      const int64_t from = received[static_cast<size_t>(peer)] * row_bytes;
      Add({Kind::kSend, peer, in, nullptr, to});
      Add({Kind::kReceive, peer, nullptr, out, from});
      in = At(in, to);
      out = At(out, from);
    }
  }

 private:
  // All ranks concerned know that there is nothing.
  void Add(const CommunicatorCall& call) {
    if (call.count > 0) calls_->calls.push_back(call);
  }

  const Batch& batch_;
  const int64_t element_bytes_;
  const int rank_, size_;
  CommunicatorCalls* const calls_;
};

}  // namespace

double DivisorOf(const Batch& batch, int size) {
  if (batch.reduce_op != ReduceOp::kAverage) return 1.0;
  return static_cast<double>(batch.divisor > 0 ? batch.divisor : size);
}

bool IsScaled(const Batch& batch, int size) {
  return batch.prescale != 1.0 || batch.postscale != 1.0 ||
         DivisorOf(batch, size) != 1.0;
}

double ScaleOf(const Batch& batch, int size) {
  return batch.prescale * batch.postscale / DivisorOf(batch, size);
}

CommunicatorCalls CallsOf(const Batch& batch, const std::vector<void*>& outputs,
                          const RankCounts& rows, int rank, int size) {
  CommunicatorCalls calls;
  calls.dtype = DataType::kUint8;
  if (batch.verb == Verb::kAllreduce || batch.verb == Verb::kReducescatter) {
    calls.dtype = batch.dtype;
    calls.op = batch.reduce_op;
    calls.scale = ScaleOf(batch, size);
  }
  Lister lister(batch, rank, size, &calls);
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    switch (batch.verb) {
      case Verb::kAllreduce:
        lister.Allreduce(segment);
        break;
      case Verb::kBroadcast:
        lister.Broadcast(segment);
        break;
      case Verb::kReducescatter:
        lister.Reducescatter(segment);
        break;
      case Verb::kAllgather:
        lister.Allgather(segment, outputs[s], rows[s]);
        break;
      case Verb::kAlltoall:
        lister.Alltoall(segment, outputs[s], batch.rows[s], rows[s]);
        break;
      default:
        break;  // not for communicators
    }
  }
  return calls;
}

}  // namespace hvd
