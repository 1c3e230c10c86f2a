// SPDX-License-Identifier: Apache-2.0
// Packer: copies elements between segments and staging memory.
#ifndef HVD_TRANSPORT_COLLECTIVES_PACKER_H_
#define HVD_TRANSPORT_COLLECTIVES_PACKER_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/batch_times.h"
#include "core/transport.h"
#include "cpu/store_choice.h"
#include "cpu/work_threads.h"
#include "transport/collectives/segment_map.h"

namespace hvd {

// Chunks and their shards begin at multiples of it, for aligned vectors.
inline constexpr int64_t kAlignedElements = 16;
// Elements that are packed, reduced and unpacked at a time. They stay in the
// first-level cache between these steps.
inline constexpr int64_t kTileElements = 2048;

[[nodiscard]] inline int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The memory that a phase works on, and how its elements cross the wire.
struct Operands {
  std::vector<Segment> segments;
  DataType dtype = DataType::kUint8;
  DataType wire_dtype = DataType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  int64_t divisor = 0;  // see Batch
  double prescale = 1.0;
  double postscale = 1.0;
  // Inputs are looked through for values that are not finite.
  bool check_finite = false;
  // The caller of the batch owns the memory. It must not be touched once the
  // batch is detached. Memory of the transport's own may be.
  bool is_callers = true;
  // Numbers that only say how much data follows. They count as header bytes.
  bool are_sizes = false;
};

// The operands of a batch itself. Of a verb that only moves data, elements
// cross the wire as they are.
[[nodiscard]] Operands ReducedOperands(const Batch& batch);
[[nodiscard]] Operands MovedOperands(const Batch& batch);

// Elements of each segment.
[[nodiscard]] std::vector<int64_t> CountsOf(
    const std::vector<Segment>& segments);
// Bytes of all elements of the segments.
[[nodiscard]] int64_t BytesOf(const Operands& operands);

// Scale and cast are done in the same pass as the copy. Background thread; a
// large batch is shared with WorkThreads.
class Packer {
 public:
  // `choice` may be null. `bytes` are those of all elements that go through it.
  Packer(Operands operands, StoreChoice* choice, int64_t bytes);

  const Operands& operands() const { return operands_; }
  // Bytes of an element on the wire.
  int64_t element_bytes() const { return element_bytes_; }
  StoreChoice* store_choice() const { return store_choice_; }

  // Whether several threads should share its work.
  bool is_large() const { return is_large_; }
  // From now on they share the work. Null: they do not.
  void ShareWith(WorkThreads* threads) { threads_ = threads; }

  // From now on its copies are timed. Null: they are not.
  void TimeInto(BatchTimes* times) { times_ = times; }
  BatchTimes* times() const { return times_; }

  // Elements [begin, end) of `map`, as they cross the wire.
  void Pack(const SegmentMap& map, int64_t begin, int64_t end,
            std::byte* out) const;
  // Writes elements [begin, end) of `map` into the outputs.
  void Unpack(const SegmentMap& map, int64_t begin, int64_t end,
              const std::byte* in) const;
  // Copies elements [begin, end) of `from` in the inputs to those of `to` in
  // the outputs, unless that is where they are. Both have the same counts. They
  // get the values that they would have on another rank.
  void CopyOwn(const SegmentMap& from, const SegmentMap& to, int64_t begin,
               int64_t end) const;

  // Elements of the input as they cross the wire. They are where they were, or
  // in `space`. Without an input they are the identity of the reduction. They
  // may be checked here, so a caller asks for no more than a tile.
  const std::byte* Input(const Segment& segment, int64_t first, int64_t count,
                         std::byte* space) const;
  // Copies elements that need no change to `out`, a place in the segment's
  // output. Null: they are dropped.
  void Copy(const Segment& segment, const std::byte* from, std::byte* out,
            size_t bytes) const;
  // A segment in which a value was found that is not finite, or -1.
  int not_finite() const { return not_finite_.load(std::memory_order_relaxed); }

  // Calls work(begin, end) for [begin, end), or for parts of it on several
  // threads at once.
  template <typename Work>
  void Share(int64_t begin, int64_t end, const Work& work) const {
    constexpr int64_t kSharedBytes = 64 << 10;
    const int64_t step = RoundUp(
        std::max(kSharedBytes / element_bytes_, int64_t{1}), kAlignedElements);
    if (threads_ == nullptr || end - begin <= step) return work(begin, end);
    threads_->Run(RoundUp(end - begin, step) / step, [&](int64_t part) {
      const int64_t from = begin + part * step;
      work(from, std::min(from + step, end));
    });
  }

 private:
  // On one thread. `non_temporal`: what peers read is written past the cache.
  void PackRange(const SegmentMap& map, int64_t begin, int64_t end,
                 std::byte* out, bool non_temporal) const;
  void UnpackRange(const SegmentMap& map, int64_t begin, int64_t end,
                   const std::byte* in) const;
  // Looks for values that are not finite, if that is asked for.
  void Check(const Segment& segment, const std::byte* packed,
             int64_t count) const;
  // Whether elements of the segment's input cross the wire as they are.
  bool SendsUnchanged(const Segment& segment) const;
  // Elements of one segment to `out`, as if they had crossed the wire.
  void CopyChanged(const Segment& segment, int64_t first, int64_t count,
                   std::byte* out) const;
  // Packs elements of one segment past the cache.
  void PackNonTemporal(const Segment& segment, int64_t first, int64_t count,
                       std::byte* out) const;

  const Operands operands_;
  StoreChoice* const store_choice_;
  const int64_t element_bytes_;
  const bool non_temporal_outputs_;
  const bool is_large_;
  WorkThreads* threads_ = nullptr;
  BatchTimes* times_ = nullptr;
  // Set by any of the threads.
  mutable std::atomic<int> not_finite_{-1};
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_PACKER_H_
