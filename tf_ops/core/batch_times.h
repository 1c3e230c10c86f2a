// SPDX-License-Identifier: Apache-2.0
// BatchTimes: when a batch moved on one rank, and how long its copies took.
#ifndef HVD_CORE_BATCH_TIMES_H_
#define HVD_CORE_BATCH_TIMES_H_

#include <chrono>
#include <cstdint>

namespace hvd {

// Nanoseconds of the steady clock.
[[nodiscard]] inline int64_t SteadyNow_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The executor makes it where the timeline is on, and the transport fills it
// in. Times are SteadyNow_ns; 0: it has not come to that. A large batch moves
// in chunks, whose copies alternate with the wire, so these are sums.
struct BatchTimes {
  bool among_gpus = false;    // GPUs reduced it by themselves
  int64_t started_ns = 0;     // given to the transport
  int64_t first_in_ns = 0;    // the first copy of an input began
  int64_t packed_ns = 0;      // the last one ended that came before any output
  int64_t last_out_ns = 0;    // the last copy to an output began
  int64_t copy_in_ns = 0;     // in all: packing inputs
  int64_t reduce_ns = 0;      // in all: reducing into outputs or partial sums
  int64_t copy_out_ns = 0;    // in all: copying what has come to outputs
  int64_t payload_bytes = 0;  // sent
};

// While it lives, one of these kinds of copies runs. Null: none is timed.
class CopyTimer {
 public:
  CopyTimer(BatchTimes* times, int64_t BatchTimes::* total)
      : times_(times), total_(total) {
    if (times_ != nullptr) begin_ns_ = SteadyNow_ns();
  }
  ~CopyTimer() {
    if (times_ == nullptr) return;
    const int64_t end_ns = SteadyNow_ns();
    times_->*total_ += end_ns - begin_ns_;
    if (times_->first_in_ns == 0) times_->first_in_ns = begin_ns_;
    if (total_ != &BatchTimes::copy_in_ns) {
      times_->last_out_ns = begin_ns_;
    } else if (times_->last_out_ns == 0) {
      times_->packed_ns = end_ns;
    }
  }
  CopyTimer(const CopyTimer&) = delete;
  CopyTimer& operator=(const CopyTimer&) = delete;

 private:
  BatchTimes* const times_;
  int64_t BatchTimes::* const total_;
  int64_t begin_ns_ = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_BATCH_TIMES_H_
