// SPDX-License-Identifier: Apache-2.0
// SegmentMap: some elements of a list of segments, numbered through.
#ifndef HVD_TRANSPORT_COLLECTIVES_SEGMENT_MAP_H_
#define HVD_TRANSPORT_COLLECTIVES_SEGMENT_MAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd {

class SegmentMap {
 public:
  SegmentMap() = default;
  // `counts` elements of each segment, from its begin.
  explicit SegmentMap(const std::vector<int64_t>& counts) {
    ends_.reserve(counts.size());
    for (int64_t count : counts) ends_.push_back(end_ += count);
  }
  // The same, but from element `firsts` of each segment.
  SegmentMap(const std::vector<int64_t>& counts, std::vector<int64_t> firsts)
      : SegmentMap(counts) {
    firsts_ = std::move(firsts);
  }

  int64_t total() const { return end_; }

  // Calls visit(segment, first element within it, elements, elements visited
  // before) for what lies in [begin, end).
  template <typename Visit>
  void ForRange(int64_t begin, int64_t end, Visit visit) const {
    auto at = std::upper_bound(ends_.begin(), ends_.end(), begin);
    for (int64_t done = 0; begin + done < end; ++at) {
      const size_t segment = static_cast<size_t>(at - ends_.begin());
      const int64_t start = segment == 0 ? 0 : ends_[segment - 1];
      const int64_t first = begin + done - start;
      const int64_t count = std::min(*at, end) - (begin + done);
      const int64_t base = firsts_.empty() ? 0 : firsts_[segment];
      if (count > 0) visit(segment, base + first, count, done);
      done += count;
    }
  }

 private:
  int64_t end_ = 0;
  std::vector<int64_t> ends_;
  std::vector<int64_t> firsts_;  // empty: all are 0
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_SEGMENT_MAP_H_
