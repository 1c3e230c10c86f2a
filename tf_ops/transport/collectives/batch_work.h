// SPDX-License-Identifier: Apache-2.0
// BatchWork: what the chunks of one staged batch share.
#ifndef HVD_TRANSPORT_COLLECTIVES_BATCH_WORK_H_
#define HVD_TRANSPORT_COLLECTIVES_BATCH_WORK_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "core/transport.h"
#include "cpu/elementwise.h"
#include "cpu/work_threads.h"
#include "transport/wire.h"

namespace hvd {

// Chunks and their shards begin at multiples of it, for aligned vectors.
inline constexpr int64_t kAlignedElements = 16;

// An allgather moves a chunk of every rank at once, so its chunks are smaller.
// They are not smaller than this.
inline constexpr int64_t kSmallestGatherChunkBytes = 16 << 10;

// Why a rank sends no data. It travels instead of the data.
struct Poison {
  StatusCode code = StatusCode::kOk;
  int origin = 0;  // rank within the set
  // The one with a value that is not finite. -1: there is none.
  int segment = -1;

  explicit operator bool() const { return code != StatusCode::kOk; }
};

// Elements of a list of segments, numbered through.
class SegmentMap {
 public:
  // Elements of each segment.
  explicit SegmentMap(const std::vector<int64_t>& counts);

  int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }

  // Calls visit(segment, first element within it, elements, elements visited
  // before) for what lies in [begin, end).
  template <typename Visit>
  void ForRange(int64_t begin, int64_t end, Visit visit) const {
    auto at = std::upper_bound(ends_.begin(), ends_.end(), begin);
    for (int64_t done = 0; begin + done < end; ++at) {
      const size_t segment = at - ends_.begin();
      const int64_t start = segment == 0 ? 0 : ends_[segment - 1];
      const int64_t first = begin + done - start;
      const int64_t count = std::min(*at, end) - (begin + done);
      if (count > 0) visit(segment, first, count, done);
      done += count;
    }
  }

 private:
  std::vector<int64_t> ends_;
};

// A batch on a wire of `size` ranks. Only Pack, Unpack, KeepOwn, Reduce and
// ReduceWithinHost touch the user's memory. They are not to be called once it
// is detached.
class BatchWork {
 public:
  // The batch has been checked by CheckBatch.
  BatchWork(Batch batch, uint64_t sequence, int64_t chunk_bytes, Wire* wire);

  const Batch& batch() const { return batch_; }
  Wire* wire() const { return wire_; }
  uint64_t sequence() const { return sequence_; }
  int rank() const { return wire_->rank(); }
  int size() const { return wire_->size(); }

  // Bytes of an element on the wire.
  int64_t element_bytes() const { return element_bytes_; }
  int64_t chunk_elements() const { return chunk_elements_; }
  // At least 1, so that ranks hear of each other even if there is no element.
  int64_t chunk_count() const { return chunk_count_; }
  // Elements that `rank` puts in. The same for all but in an allgather.
  int64_t element_count(int rank) const { return map(rank).total(); }

  // Whether several threads should share its work.
  bool is_large() const { return is_large_; }
  // From now on they share the work. Null: they do not.
  void ShareWith(WorkThreads* threads) { threads_ = threads; }

  // A detached batch serves its peers, but has no memory and no result of its
  // own.
  bool is_detached() const { return static_cast<bool>(poison_); }
  const Poison& poison() const { return poison_; }
  // Makes it detached. Later calls change nothing.
  void Fail(Poison poison);

  // To be called after Pack, Reduce and ReduceWithinHost. If they met a value
  // that is not finite, and the batch is to be checked, the batch fails here
  // and now. Returns its poison.
  const Poison& FailIfNotFinite();

  // Elements [begin, end) of this rank's input, as they cross the wire.
  void Pack(int64_t begin, int64_t end, std::byte* out) const;
  // Writes elements [begin, end) of what came from `rank` into the output.
  void Unpack(int rank, int64_t begin, int64_t end, const std::byte* in);
  // Broadcast, on the root. Writes elements [begin, end) of the input into the
  // output, unless that is where they are.
  void KeepOwn(int64_t begin, int64_t end);
  // Allreduce. Writes elements [begin, end) of all ranks, reduced, into the
  // output. Unless `result` is null, they also go there, as they cross the
  // wire. `blocks` are the peers', by rank. What stands at this rank's place is
  // not looked at, because its input is read where it is.
  void Reduce(int64_t begin, int64_t end,
              const std::vector<const std::byte*>& blocks, std::byte* result);
  // Allreduce in two levels, first step. Writes elements [begin, end) of the
  // ranks of a host, reduced, into `partial`. `blocks` are by place among them,
  // null at this rank's. Of an average `partial` is the host's sum. It is the
  // host's average where the wire's type could not hold the sum.
  void ReduceWithinHost(int64_t begin, int64_t end,
                        const std::vector<const std::byte*>& blocks,
                        int own_place, std::byte* partial) const;
  // Second step. Writes `count` elements of the hosts' partials, reduced, into
  // `result`, for Unpack. `partials` are by host. `result` may be one of them.
  void ReduceAcrossHosts(int64_t count,
                         const std::vector<const std::byte*>& partials,
                         std::byte* result) const;

 private:
  const SegmentMap& map(int rank) const {
    return maps_[maps_.size() == 1 ? 0 : rank];
  }

  // Calls work(begin, end) for [begin, end), or for parts of it on several
  // threads at once.
  template <typename Work>
  void Share(int64_t begin, int64_t end, const Work& work) const;

  // The same as the public ones of that name, on one thread. `non_temporal`
  // says whether what peers read is written past the cache.
  void PackRange(int64_t begin, int64_t end, std::byte* out,
                 bool non_temporal) const;
  void UnpackRange(int rank, int64_t begin, int64_t end, const std::byte* in);
  void ReduceRange(int64_t begin, int64_t end,
                   const std::vector<const std::byte*>& blocks,
                   std::byte* result, bool non_temporal);
  void ReduceHostRange(int64_t begin, int64_t end,
                       const std::vector<const std::byte*>& blocks,
                       int own_place, std::byte* partial) const;

  // Looks for values that are not finite, if the batch is to be checked.
  void Check(const Segment& segment, const std::byte* packed,
             int64_t count) const;
  // Elements of this rank's input as they cross the wire. They are where they
  // were, or in `space`. They may be checked here, so a caller asks for no more
  // than a cache holds.
  const std::byte* Input(const Segment& segment, int64_t first, int64_t count,
                         std::byte* space) const;
  // Whether elements of the input cross the wire as they are.
  bool SendsUnchanged() const;
  // Packs elements of one segment past the cache.
  void PackNonTemporal(const Segment& segment, int64_t first, int64_t count,
                       std::byte* out) const;
  // Of unchanged elements into the segment's output.
  void Copy(const Segment& segment, const std::byte* from, std::byte* out,
            size_t bytes) const;

  Batch batch_;
  const uint64_t sequence_;
  Wire* const wire_;
  Averaged hosts_averaged_;  // what the hosts' partials stand for
  int64_t element_bytes_ = 0;
  int64_t chunk_elements_ = 0;
  int64_t chunk_count_ = 0;
  bool non_temporal_outputs_ = false;  // outputs are written past the cache
  bool is_large_ = false;
  WorkThreads* threads_ = nullptr;
  Poison poison_;
  // Set by any of the threads.
  mutable std::atomic<int> not_finite_{-1};  // a segment that has such a value
  std::vector<SegmentMap> maps_;  // one, or in an allgather one per rank
  // Allgather: elements before the part of [rank] in the output of [segment].
  std::vector<std::vector<int64_t>> offsets_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_BATCH_WORK_H_
